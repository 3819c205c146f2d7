#include "storage/bucket/bucket_address.h"

#include <cairn/state_dict.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/whole_number.h"

namespace cairn::storage {
namespace {

constexpr std::string_view kAmazonScheme = "s3://";
constexpr std::string_view kGoogleScheme = "gs://";

bool is_lower_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

// The rules of S3 for new buckets. Buckets of Google have '_' too.
bool is_bucket_name(std::string_view name, StoreDialect dialect) {
  if (name.size() < 3 || name.size() > 222) return false;
  if (!is_lower_or_digit(name.front()) || !is_lower_or_digit(name.back())) return false;
  if (name.find("..") != std::string_view::npos) return false;
  return std::all_of(name.begin(), name.end(), [&](char c) {
    return is_lower_or_digit(c) || c == '-' || c == '.' || (c == '_' && dialect == StoreDialect::kGoogle);
  });
}

bool is_unreserved(char c) {
  return is_lower_or_digit(c) || (c >= 'A' && c <= 'Z') || c == '-' || c == '.' || c == '_' || c == '~';
}

// A key with its control characters shown, for errors.
std::string shown(std::string_view key) { return percent_encoded(key.substr(0, 200), SlashEncoding::kKept); }

std::optional<std::string_view> fault_of_key(std::string_view key) {
  if (key.size() > kKeyBytesMax) return "a key of at most 1024 bytes";
  for (std::string_view rest = key; !rest.empty();) {
    const std::optional<Utf8Character> character = first_character(rest);
    if (!character) return "UTF-8";
    if (character->code_point < 0x20 || character->code_point == 0x7F) return "no control character";
    rest.remove_prefix(character->bytes);
  }
  for (std::size_t begin = 0; begin <= key.size();) {
    const std::size_t end = std::min(key.find('/', begin), key.size());
    const std::string_view part = key.substr(begin, end - begin);
    if (part.empty()) return "no empty part between, before or after '/'";
    if (part == "." || part == "..") return "no part '.' or '..'";
    begin = end + 1;
  }
  return std::nullopt;
}

}  // namespace

std::string BucketAddress::text() const {
  std::string text(dialect == StoreDialect::kGoogle ? kGoogleScheme : kAmazonScheme);
  text += bucket;
  if (!prefix.empty()) text += "/" + prefix;
  return text;
}

bool is_bucket_address(std::string_view text) {
  return text.substr(0, kAmazonScheme.size()) == kAmazonScheme || text.substr(0, kGoogleScheme.size()) == kGoogleScheme;
}

Result<BucketAddress> parse_bucket_address(std::string_view text) {
  if (!is_bucket_address(text)) {
    return Error(ErrorCode::kInvalidArgument, "not the address of a bucket: '" + shown(text) + "'")
        .expected("s3://bucket/prefix or gs://bucket/prefix");
  }
  BucketAddress address;
  if (text.substr(0, kGoogleScheme.size()) == kGoogleScheme) address.dialect = StoreDialect::kGoogle;
  const std::string_view place = text.substr(kAmazonScheme.size());
  const std::size_t slash = std::min(place.find('/'), place.size());
  address.bucket = place.substr(0, slash);
  if (!is_bucket_name(address.bucket, address.dialect)) {
    return Error(ErrorCode::kInvalidArgument, "no name of a bucket in '" + shown(text) + "'")
        .expected("3 to 63 lower-case letters, digits, '-' and '.', as in s3://bucket/prefix")
        .actual("'" + shown(address.bucket) + "'");
  }
  std::string_view prefix = place.substr(std::min(slash + 1, place.size()));
  if (!prefix.empty() && prefix.back() == '/') prefix.remove_suffix(1);
  if (!prefix.empty()) {
    if (auto checked = check_key(prefix); !checked) {
      return std::move(checked).error().while_doing("reading the address '" + shown(text) + "'");
    }
  }
  address.prefix = prefix;
  return address;
}

Result<void> check_key(std::string_view key) {
  const std::optional<std::string_view> fault = fault_of_key(key);
  if (!fault) return {};
  return Error(ErrorCode::kInvalidArgument, "not a name for an object: '" + shown(key) + "'").expected(*fault);
}

std::string percent_encoded(std::string_view text, SlashEncoding slash) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (is_unreserved(c) || (c == '/' && slash == SlashEncoding::kKept)) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += '%';
      encoded += kDigits[byte >> 4];
      encoded += kDigits[byte & 15];
    }
  }
  return encoded;
}

Result<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    const std::string_view digits = text.substr(i + 1, 2);
    const std::optional<std::uint8_t> byte = digits.size() == 2 ? whole_number<std::uint8_t>(digits, 16) : std::nullopt;
    if (!byte) {
      return Error(ErrorCode::kUnsafe, "an incomplete percent escape in the answer of a store")
          .actual("'" + shown(text) + "'");
    }
    decoded += static_cast<char>(*byte);
    i += 2;
  }
  return decoded;
}

}  // namespace cairn::storage
