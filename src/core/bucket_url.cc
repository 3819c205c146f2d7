#include <cairn/bucket_url.h>

#include <string_view>
#include <system_error>

namespace cairn {

bool is_bucket_url(const std::filesystem::path& place) {
  const std::string_view text = place.native();
  return text.starts_with("s3://") || text.starts_with("gs://");
}

std::filesystem::path absolute_place(const std::filesystem::path& place) {
  if (is_bucket_url(place)) return place;
  std::error_code failure;
  std::filesystem::path absolute = std::filesystem::absolute(place, failure);
  return failure ? place : absolute;
}

}  // namespace cairn
