// Reads any bytes as each answer of an object store. An accepted listing holds only keys of the asked prefix.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "decoding_bounds.h"
#include "storage/bucket/store_answer.h"

namespace store_answer_fuzz {

using namespace cairn::storage;

void check_listing(std::string_view text) {
  const cairn::Result<ObjectPage> page = decode_listing(text, "p/", StoreDialect::kAmazon);
  if (!page) return;
  for (const ListedObject& object : page->objects) {
    if (!check_listed_key(object.key, "p/")) std::abort();
  }
  for (const std::string& folder : page->folders) {
    if (!check_listed_key(folder, "p/") || folder.back() != '/') std::abort();
  }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const cairn::fuzz::DecodingBounds bounds(size);
  check_listing(text);
  static_cast<void>(decode_listing(text, "", StoreDialect::kGoogle).has_value());
  static_cast<void>(decode_fault(text));
  static_cast<void>(decode_begun_upload(text).has_value());
  static_cast<void>(decode_completed_upload(text).has_value());
  static_cast<void>(decode_upload_page(text, "p/").has_value());
  static_cast<void>(decode_part_page(text).has_value());
  static_cast<void>(decode_removals(text).has_value());
  static_cast<void>(decode_assumed_role(text).has_value());
  return 0;
}

}  // namespace store_answer_fuzz
