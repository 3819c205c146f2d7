#include "storage/bucket/store_answer.h"

#include <array>
#include <cstdlib>
#include <utility>

#include "core/whole_number.h"
#include "storage/bucket/store_time.h"
#include "storage/bucket/xml_reader.h"

namespace cairn::storage {
namespace {

constexpr std::size_t kMessageBytesMax = 300;

Error refused(std::string message, std::string_view expected, std::string_view actual) {
  return Error(ErrorCode::kUnsafe, std::move(message))
      .expected(expected)
      .actual("'" + percent_encoded(actual.substr(0, kMessageBytesMax), SlashEncoding::kKept) + "'");
}

std::string printable(std::string_view text) {
  std::string clean;
  for (const char c : text.substr(0, kMessageBytesMax)) clean += c >= ' ' && c <= '~' ? c : '?';
  return clean;
}

// Opens the outermost element, which must have the name with "Result" at its end. Some servers write "Response".
Result<void> begin(XmlReader& reader, std::string_view name) {
  CAIRN_TRY_ASSIGN(const std::string_view found, reader.begin());
  const std::string stem(name.substr(0, name.size() - std::string_view("Result").size()));
  if (found != name && found != stem + "Response") {
    return refused("an answer of another kind than asked for", name, found);
  }
  return {};
}

// Calls `take(name)` for each element inside of the open one. `take` reads or skips the element.
template <typename Take>
Result<void> each_element(XmlReader& reader, Take&& take) {
  for (;;) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string_view> name, reader.next_element());
    if (!name) return {};
    CAIRN_TRY(take(*name));
  }
}

Result<void> read_into(XmlReader& reader, std::string& target) {
  CAIRN_TRY_ASSIGN(target, reader.read_text());
  return {};
}

template <typename Number>
Result<void> read_number(XmlReader& reader, Number& target) {
  CAIRN_TRY_ASSIGN(const std::string text, reader.read_text());
  const std::optional<Number> number = whole_number<Number>(text);
  if (!number) return refused("an answer without a number", "a number", text);
  target = *number;
  return {};
}

Result<void> read_time(XmlReader& reader, double& target) {
  CAIRN_TRY_ASSIGN(const std::string text, reader.read_text());
  const std::optional<double> time = time_of_iso_date(text);
  if (!time) return refused("an answer without a date", "a date as 2009-10-12T17:50:30.000Z", text);
  target = *time;
  return {};
}

Result<void> read_flag(XmlReader& reader, bool& target) {
  CAIRN_TRY_ASSIGN(const std::string text, reader.read_text());
  target = text == "true";
  return {};
}

Result<void> read_fault(XmlReader& reader, StoreFault& fault) {
  return each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "Code") return read_into(reader, fault.code);
    if (name == "Message") return read_into(reader, fault.message);
    return reader.skip();
  });
}

// An object in a listing. Google's listings have the generation, which is the tag of that dialect.
Result<ListedObject> read_object(XmlReader& reader, StoreDialect dialect) {
  ListedObject object;
  std::string generation;
  bool has_size = false;
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "Key") return read_into(reader, object.key);
    if (name == "ETag") return read_into(reader, object.version.tag);
    if (name == "Generation") return read_into(reader, generation);
    if (name == "LastModified") return read_time(reader, object.version.changed_at);
    if (name != "Size") return reader.skip();
    has_size = true;
    return read_number(reader, object.version.size);
  }));
  if (!has_size) return refused("a listing with an object that has no size", "a size", object.key);
  object.version.tag = dialect == StoreDialect::kGoogle ? generation : quoted_tag(object.version.tag);
  return object;
}

Result<std::string> read_folder(XmlReader& reader) {
  std::string folder;
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "Prefix") return read_into(reader, folder);
    return reader.skip();
  }));
  return folder;
}

Result<PendingUpload> read_upload(XmlReader& reader) {
  PendingUpload upload;
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "Key") return read_into(reader, upload.key);
    if (name == "UploadId") return read_into(reader, upload.upload_id);
    if (name == "Initiated") return read_time(reader, upload.begun_at);
    return reader.skip();
  }));
  if (upload.upload_id.empty()) return refused("a listing with an upload that has no id", "an id", upload.key);
  return upload;
}

Result<UploadedPart> read_part(XmlReader& reader) {
  UploadedPart part;
  std::string checksum;
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "PartNumber") return read_number(reader, part.number);
    if (name == "ETag") return read_into(reader, part.tag);
    if (name == "Size") return read_number(reader, part.size);
    if (name == "ChecksumCRC32") return read_into(reader, checksum);
    return reader.skip();
  }));
  if (part.number == 0 || part.number > ObjectStore::kPartCountMax) {
    return refused("a listing with a part of a number that no part has", "1 to 10000", std::to_string(part.number));
  }
  part.tag = quoted_tag(part.tag);
  part.crc32 = crc32_of_base64(checksum);
  return part;
}

Result<RemovalFault> read_removal(XmlReader& reader) {
  RemovalFault found;
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "Key") return read_into(reader, found.key);
    if (name == "Code") return read_into(reader, found.fault.code);
    if (name == "Message") return read_into(reader, found.fault.message);
    return reader.skip();
  }));
  found.fault = {printable(found.fault.code), printable(found.fault.message)};
  return found;
}

Result<void> decode_and_check(std::string& key, bool is_encoded, std::string_view prefix) {
  if (is_encoded) {
    CAIRN_TRY_ASSIGN(key, percent_decoded(key));
  }
  return check_listed_key(key, prefix);
}

}  // namespace

StoreFault decode_fault(std::string_view text) {
  StoreFault fault;
  XmlReader reader(text);
  Result<std::string_view> name = reader.begin();
  if (name && *name == "ErrorResponse") {  // of the token service: <ErrorResponse><Error>
    const auto inner = reader.next_element();
    name = inner && *inner ? **inner : std::string_view();
  }
  if (!name || *name != "Error" || !read_fault(reader, fault)) return {};
  return {printable(fault.code), printable(fault.message)};
}

Result<ObjectPage> decode_listing(std::string_view text, std::string_view prefix, StoreDialect dialect) {
  XmlReader reader(text);
  ObjectPage page;
  bool has_more = false;
  std::string encoding;
  CAIRN_TRY(begin(reader, "ListBucketResult"));
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "IsTruncated") return read_flag(reader, has_more);
    if (name == "NextContinuationToken") return read_into(reader, page.next);
    if (name == "EncodingType") return read_into(reader, encoding);
    if (name == "Contents") {
      CAIRN_TRY_ASSIGN(ListedObject object, read_object(reader, dialect));
      page.objects.push_back(std::move(object));
      return {};
    }
    if (name == "CommonPrefixes") {
      CAIRN_TRY_ASSIGN(std::string folder, read_folder(reader));
      page.folders.push_back(std::move(folder));
      return {};
    }
    return reader.skip();
  }));
  CAIRN_TRY(reader.end());
  for (ListedObject& object : page.objects) {
    CAIRN_TRY(decode_and_check(object.key, encoding == "url", prefix));
  }
  for (std::string& folder : page.folders) {
    CAIRN_TRY(decode_and_check(folder, encoding == "url", prefix));
    if (folder.empty() || folder.back() != '/') return refused("a listing with a folder of no '/'", "a '/'", folder);
  }
  if (has_more && page.next.empty()) return refused("a listing without its next page", "a token", "");
  if (!has_more) page.next.clear();
  return page;
}

Result<std::string> decode_begun_upload(std::string_view text) {
  XmlReader reader(text);
  std::string id;
  CAIRN_TRY(begin(reader, "InitiateMultipartUploadResult"));
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "UploadId") return read_into(reader, id);
    return reader.skip();
  }));
  CAIRN_TRY(reader.end());
  if (id.empty()) return refused("a begun upload without an id", "an id", "");
  return id;
}

Result<CompletedUpload> decode_completed_upload(std::string_view text) {
  XmlReader reader(text);
  CompletedUpload upload;
  std::string checksum;
  CAIRN_TRY(begin(reader, "CompleteMultipartUploadResult"));
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "ETag") return read_into(reader, upload.tag);
    if (name == "ChecksumCRC32") return read_into(reader, checksum);
    return reader.skip();
  }));
  CAIRN_TRY(reader.end());
  if (upload.tag.empty()) return refused("a completed upload without a tag", "an entity tag", "");
  upload.tag = quoted_tag(upload.tag);
  upload.crc32 = crc32_of_base64(checksum);
  return upload;
}

Result<UploadPage> decode_upload_page(std::string_view text, std::string_view prefix) {
  XmlReader reader(text);
  UploadPage page;
  std::string encoding;
  CAIRN_TRY(begin(reader, "ListMultipartUploadsResult"));
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "IsTruncated") return read_flag(reader, page.has_more);
    if (name == "NextKeyMarker") return read_into(reader, page.next_key);
    if (name == "NextUploadIdMarker") return read_into(reader, page.next_upload);
    if (name == "EncodingType") return read_into(reader, encoding);
    if (name != "Upload") return reader.skip();
    CAIRN_TRY_ASSIGN(PendingUpload upload, read_upload(reader));
    page.uploads.push_back(std::move(upload));
    return {};
  }));
  CAIRN_TRY(reader.end());
  for (PendingUpload& upload : page.uploads) {
    CAIRN_TRY(decode_and_check(upload.key, encoding == "url", prefix));
  }
  if (page.has_more && page.next_key.empty()) return refused("a listing without its next page", "a marker", "");
  if (encoding == "url") {
    CAIRN_TRY_ASSIGN(page.next_key, percent_decoded(page.next_key));
  }
  return page;
}

Result<PartPage> decode_part_page(std::string_view text) {
  XmlReader reader(text);
  PartPage page;
  CAIRN_TRY(begin(reader, "ListPartsResult"));
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name == "IsTruncated") return read_flag(reader, page.has_more);
    if (name == "NextPartNumberMarker") return read_number(reader, page.next_number);
    if (name != "Part") return reader.skip();
    CAIRN_TRY_ASSIGN(UploadedPart part, read_part(reader));
    page.parts.push_back(std::move(part));
    return {};
  }));
  CAIRN_TRY(reader.end());
  return page;
}

Result<std::optional<RemovalFault>> decode_removals(std::string_view text) {
  XmlReader reader(text);
  std::optional<RemovalFault> first;
  CAIRN_TRY(begin(reader, "DeleteResult"));
  CAIRN_TRY(each_element(reader, [&](std::string_view name) -> Result<void> {
    if (name != "Error") return reader.skip();
    CAIRN_TRY_ASSIGN(RemovalFault found, read_removal(reader));
    if (!first && found.fault.code != "NoSuchKey") first = std::move(found);
    return {};
  }));
  CAIRN_TRY(reader.end());
  return first;
}

Result<TemporaryKeys> decode_assumed_role(std::string_view text) {
  XmlReader reader(text);
  TemporaryKeys keys;
  const auto read_keys = [&](std::string_view name) -> Result<void> {
    if (name == "AccessKeyId") return read_into(reader, keys.access_key);
    if (name == "SecretAccessKey") return read_into(reader, keys.secret_key);
    if (name == "SessionToken") return read_into(reader, keys.session_token);
    if (name == "Expiration") return read_time(reader, keys.expires_at);
    return reader.skip();
  };
  CAIRN_TRY(begin(reader, "AssumeRoleWithWebIdentityResult"));
  CAIRN_TRY(each_element(reader, [&](std::string_view result) -> Result<void> {
    if (result != "AssumeRoleWithWebIdentityResult") return reader.skip();
    return each_element(reader, [&](std::string_view name) -> Result<void> {
      return name == "Credentials" ? each_element(reader, read_keys) : reader.skip();
    });
  }));
  CAIRN_TRY(reader.end());
  if (keys.access_key.empty() || keys.secret_key.empty() || keys.expires_at == 0) {
    return Error(ErrorCode::kUnsafe, "an assumed role without keys");
  }
  return keys;
}

std::string quoted_tag(std::string_view tag) {
  if (tag.empty() || tag.back() == '"') return std::string(tag);
  return "\"" + std::string(tag) + "\"";
}

Result<void> check_listed_key(std::string_view key, std::string_view prefix) {
  if (key.substr(0, prefix.size()) != prefix) {
    return refused("a listing with a name outside of the asked prefix", "'" + std::string(prefix) + "...'", key);
  }
  std::string_view name = key;
  if (!name.empty() && name.back() == '/') name.remove_suffix(1);
  if (auto checked = check_key(name); !checked) {
    return refused("a listing with a name that is not read", checked.error().expected().value_or(""), key);
  }
  return {};
}

namespace {
constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
}

std::string crc32_in_base64(std::uint32_t crc) {
  std::string text;
  const std::uint64_t bits = std::uint64_t{crc} << 4;  // six digits of six bits: 32 bits and four zero bits
  for (int shift = 30; shift >= 0; shift -= 6) text += kBase64Digits[bits >> shift & 63];
  return text + "==";
}

std::optional<std::uint32_t> crc32_of_base64(std::string_view text) {
  if (text.size() != 8 || text.substr(6) != "==") return std::nullopt;
  std::uint64_t bits = 0;
  for (const char c : text.substr(0, 6)) {
    const std::size_t digit = kBase64Digits.find(c);
    if (digit == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | digit;
  }
  if ((bits & 15) != 0) return std::nullopt;
  return static_cast<std::uint32_t>(bits >> 4);
}

}  // namespace cairn::storage
