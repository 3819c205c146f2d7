#include "storage/bucket/bucket_settings.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/whole_number.h"

namespace cairn::storage {
namespace {

constexpr std::string_view kGoogleHost = "storage.googleapis.com";

bool is_host_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
  });
}

bool is_authority(std::string_view host) {
  std::string_view name = host;
  if (!host.empty() && host.front() == '[') {
    const std::size_t end = host.find(']');
    if (end == std::string_view::npos) return false;
    const std::string_view address = host.substr(1, end - 1);
    const bool is_address = !address.empty() && std::all_of(address.begin(), address.end(), [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || c == ':' || c == '.';
    });
    if (!is_address) return false;
    const std::string_view port = host.substr(end + 1);
    return port.empty() || (port.front() == ':' && whole_number<std::uint16_t>(port.substr(1)));
  }
  const std::size_t colon = host.find(':');
  if (colon != std::string_view::npos) {
    if (!whole_number<std::uint16_t>(host.substr(colon + 1))) return false;
    name = host.substr(0, colon);
  }
  return is_host_name(name);
}

// The endpoint is shown in the error only without the part before an '@', which may hold a password.
Result<void> set_endpoint(BucketSettings& settings, std::string_view url, std::string_view source) {
  std::string_view rest = url;
  const std::string_view scheme = rest.substr(0, 8) == "https://" ? "https://" : "http://";
  const bool has_scheme = rest.substr(0, scheme.size()) == scheme;
  if (has_scheme) rest.remove_prefix(scheme.size());
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  const std::string_view host = rest.substr(0, slash);
  std::string_view path = rest.substr(slash);
  while (!path.empty() && path.back() == '/') path.remove_suffix(1);
  if (!has_scheme || !is_authority(host) || path.find_first_of("?#%\\ ") != std::string_view::npos) {
    return Error(ErrorCode::kInvalidArgument, "the endpoint in " + std::string(source) + " is not understood")
        .expected("http:// or https://, a host, a port if need be, and no user, '?' or '#'")
        .actual("'" + std::string(url.substr(url.find('@') == std::string_view::npos ? 0 : url.find('@'))) + "'");
  }
  settings.scheme_and_host = std::string(scheme) + std::string(host);
  settings.host = host;
  settings.path = percent_encoded(path, SlashEncoding::kKept);
  settings.is_endpoint_given = true;
  return {};
}

struct GivenSetting {
  std::string value;
  std::string source;  // for errors
};

std::optional<GivenSetting> given_endpoint(const Environment& environment, const Profile& profile) {
  const auto is_ignored = environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
  if (is_ignored && (*is_ignored == "true" || *is_ignored == "True" || *is_ignored == "1")) return std::nullopt;
  for (const char* name : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (auto value = environment(name)) return GivenSetting{*std::move(value), name};
  }
  if (auto value = profile.service_endpoint("s3"))
    return GivenSetting{*std::move(value), "the services of the profile"};
  for (const char* name : {"s3.endpoint_url", "endpoint_url"}) {
    if (auto value = profile.setting(name))
      return GivenSetting{*std::move(value), std::string("the profile's ") + name};
  }
  return std::nullopt;
}

Result<void> set_style(BucketSettings& settings, const BucketAddress& address, const Environment& environment,
                       const Profile& profile) {
  std::optional<std::string> style = environment("AWS_S3_ADDRESSING_STYLE");
  if (!style) style = profile.setting("s3.addressing_style");
  if (!style || *style == "auto") {
    // A bucket with dots does not fit the certificate *.s3.amazonaws.com; a server of one's own seldom has names of
    // buckets in the domain name system.
    const bool is_amazon = settings.host.find(".amazonaws.com") != std::string::npos;
    const bool is_path = !is_amazon || address.bucket.find('.') != std::string::npos;
    settings.style = is_path ? AddressingStyle::kPath : AddressingStyle::kVirtual;
    return {};
  }
  if (*style != "path" && *style != "virtual") {
    return Error(ErrorCode::kInvalidArgument, "addressing_style of s3 is not understood")
        .expected("auto, path or virtual")
        .actual("'" + *style + "'");
  }
  settings.style = *style == "path" ? AddressingStyle::kPath : AddressingStyle::kVirtual;
  return {};
}

std::string given_region(const Environment& environment, const Profile& profile) {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (auto value = environment(name)) return *std::move(value);
  }
  return profile.setting("region").value_or("us-east-1");
}

}  // namespace

Environment process_environment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* const value = std::getenv(name);
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  };
}

void set_amazon_host(BucketSettings& settings, std::string_view region) {
  settings.region = region;
  settings.host = "s3." + settings.region + ".amazonaws.com" + (region.substr(0, 3) == "cn-" ? ".cn" : "");
  settings.scheme_and_host = "https://" + settings.host;
}

Result<BucketSettings> read_bucket_settings(const BucketAddress& address, const Environment& environment,
                                            const Profile& profile) {
  BucketSettings settings;
  for (const auto& value : {environment("AWS_CA_BUNDLE"), profile.setting("ca_bundle")}) {
    if (settings.ca_file.empty() && value) settings.ca_file = *value;
  }
  if (address.dialect == StoreDialect::kGoogle) {
    CAIRN_TRY(set_endpoint(settings,
                           environment("STORAGE_EMULATOR_HOST").value_or("https://" + std::string(kGoogleHost)),
                           "STORAGE_EMULATOR_HOST"));
    settings.region = "auto";
    settings.has_checksums = false;  // that store has CRC-32C alone
    return settings;
  }
  settings.region = given_region(environment, profile);
  if (!is_host_name(settings.region)) {
    return Error(ErrorCode::kInvalidArgument, "the region of AWS is not understood")
        .actual("'" + settings.region + "'");
  }
  if (const std::optional<GivenSetting> endpoint = given_endpoint(environment, profile)) {
    CAIRN_TRY(set_endpoint(settings, endpoint->value, endpoint->source));
  } else {
    set_amazon_host(settings, settings.region);
  }
  std::optional<std::string> checksums = environment("AWS_REQUEST_CHECKSUM_CALCULATION");
  if (!checksums) checksums = profile.setting("request_checksum_calculation");
  settings.has_checksums = !checksums || (*checksums != "when_required" && *checksums != "WHEN_REQUIRED");
  CAIRN_TRY(set_style(settings, address, environment, profile));
  return settings;
}

}  // namespace cairn::storage
