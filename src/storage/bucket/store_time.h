// The times in the headers and answers of an object store, as seconds since the epoch.
//
// Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::storage {

// "Wed, 12 Oct 2009 17:50:00 GMT" (RFC 9110), of Date and Last-Modified.
std::optional<double> time_of_http_date(std::string_view text);

// "2009-10-12T17:50:30.000Z", of listings and credentials; the fraction may be missing.
std::optional<double> time_of_iso_date(std::string_view text);

// "20091012T175030Z", of signatures. `time` in whole seconds since the epoch.
std::string compact_date(std::int64_t time);

}  // namespace cairn::storage
