// The meaning of ESTALE, by which a network file system says that the server has lost track of an open file.
//
// Error::from_errno() gives ESTALE the code kNotFound, since a load then starts again. But nothing shows that the name
// is gone: a caller that would draw a conclusion from the absence of a file asks is_absent(), and reports the rest by
// unavailable_if_stale().
#pragma once

#include <cairn/result.h>

#include <cerrno>
#include <utility>

namespace cairn::storage {

inline bool is_stale(const Error& error) { return error.error_number() == ESTALE; }

// Whether the error shows that the name does not exist.
inline bool is_absent(const Error& error) { return error.code() == ErrorCode::kNotFound && !is_stale(error); }

// kUnavailable with the text of `error` if `error` is stale, else `error`.
inline Error unavailable_if_stale(Error error) {
  if (!is_stale(error)) return error;
  return Error(ErrorCode::kUnavailable, error.what()).error_number(ESTALE);
}

}  // namespace cairn::storage
