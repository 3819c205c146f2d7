// The notes of a checkpoint of a managed run: the caller's, with the members "metrics" and "run".
#pragma once

#include <cairn/result.h>

#include <map>
#include <string>

namespace cairn::run {

// `notes`: a JSON object of the caller, or empty. `account`: the value of "run". kInvalidArgument if `notes` is no JSON
// object, or has one of the two members, or if the result is larger than the notes of a checkpoint may be.
Result<std::string> notes_of_save(const std::string& notes, const std::map<std::string, double>& metrics,
                                  const std::string& account);

}  // namespace cairn::run
