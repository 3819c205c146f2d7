// Reads any bytes as the texts that lead to a bucket: a file of AWS, an address, and a name in percent encoding.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "decoding_bounds.h"
#include "storage/bucket/bucket_address.h"
#include "storage/bucket/profile_file.h"

namespace bucket_settings_fuzz {

using namespace cairn::storage;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const cairn::fuzz::DecodingBounds bounds(size);
  static_cast<void>(parse_profile_file(text, "file").has_value());
  const cairn::Result<BucketAddress> address = parse_bucket_address(text);
  if (address && !address->prefix.empty() && !check_key(address->prefix)) std::abort();
  const cairn::Result<std::string> decoded = percent_decoded(text);
  if (decoded && percent_decoded(percent_encoded(*decoded, SlashEncoding::kEncoded)).value() != *decoded) std::abort();
  return 0;
}

}  // namespace bucket_settings_fuzz
