#include "storage/bucket/temporary_keys.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include "format/json/json_reader.h"
#include "storage/bucket/store_time.h"

namespace cairn::storage {
namespace {

constexpr int kTries = 3;
constexpr std::uint64_t kKeysBytesMax = 64 << 10;
constexpr std::size_t kTokenBytesMax = 64 << 10;

Result<std::string> read_token(const std::string& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string token(kTokenBytesMax, '\0');
  stream.read(token.data(), static_cast<std::streamsize>(token.size()));
  token.resize(static_cast<std::size_t>(stream.gcount()));
  while (!token.empty() && (token.back() == '\n' || token.back() == '\r' || token.back() == ' ')) token.pop_back();
  if (token.empty() || token.size() == kTokenBytesMax) {
    return Error(ErrorCode::kUnavailable, "no token for keys of AWS in the file").file(file);
  }
  if (token.find_first_of("\r\n") != std::string::npos) {  // would become a header of its own
    return Error(ErrorCode::kInvalidArgument, "the token for keys of AWS has more than one line").file(file);
  }
  return token;
}

// The text of a successful answer. `service` completes "the keys of".
Result<std::string> answer_of(HttpConnections& http, const HttpRequest& request, const os::StopFlag* stop,
                              std::string_view service) {
  HttpEnd end;
  for (int tries = 0; tries < kTries; ++tries) {
    end = http.perform(request, stop);
    const bool may_pass =
        end.kind == HttpEnd::Kind::kLost || (end.kind == HttpEnd::Kind::kAnswered && end.head.status >= 500);
    if (!may_pass) break;
  }
  if (end.kind == HttpEnd::Kind::kAnswered && end.head.is_success()) return std::move(end.text);
  const std::string doing = "getting the keys of " + std::string(service);
  if (end.error) return (*std::move(end.error)).while_doing(doing);
  const StoreFault fault = decode_fault(end.text);
  return Error(ErrorCode::kUnavailable, "the service answered " + std::to_string(end.head.status) +
                                            (fault.code.empty() ? "" : " " + fault.code + ": " + fault.message))
      .while_doing(doing);
}

// {"AccessKeyId": .., "SecretAccessKey": .., "Token": .., "Expiration": ..}, with members of other names between.
Result<void> read_keys(std::string_view text, TemporaryKeys& keys, std::string& expiration) {
  json::JsonReader reader(text, 0);
  CAIRN_TRY(reader.begin_object());
  for (;;) {
    CAIRN_TRY_ASSIGN(const std::optional<std::string> name, reader.next_name());
    if (!name) return reader.end();
    std::string* const target = *name == "AccessKeyId"       ? &keys.access_key
                                : *name == "SecretAccessKey" ? &keys.secret_key
                                : *name == "Token"           ? &keys.session_token
                                : *name == "Expiration"      ? &expiration
                                                             : nullptr;
    if (target == nullptr) {
      CAIRN_TRY(reader.skip_value());
    } else {
      CAIRN_TRY_ASSIGN(*target, reader.read_string());
    }
  }
}

Result<TemporaryKeys> keys_in_json(std::string_view text, std::string_view service) {
  TemporaryKeys keys;
  std::string expiration;
  const bool is_read = read_keys(text, keys, expiration).has_value();  // the error would show a part of the text
  const std::optional<double> expires_at = time_of_iso_date(expiration);
  if (!is_read || keys.access_key.empty() || keys.secret_key.empty() || !expires_at) {
    return Error(ErrorCode::kUnavailable, "no keys in the answer of " + std::string(service))
        .expected("JSON with AccessKeyId, SecretAccessKey, Token and Expiration");
  }
  keys.expires_at = *expires_at;
  return keys;
}

// Whether a plain http address stays on the host: a token must not cross a network unencrypted.
bool is_on_host(std::string_view url) {
  constexpr std::string_view kHttp = "http://";
  if (url.substr(0, kHttp.size()) != kHttp) return false;
  const std::string_view rest = url.substr(kHttp.size());
  std::string_view host = rest.substr(0, rest.find('/'));
  host = host.substr(0, host.starts_with('[') ? host.find(']') + 1 : host.find(':'));
  constexpr std::array<std::string_view, 5> kHosts{"localhost", "[::1]", "169.254.170.2", "169.254.170.23",
                                                   "[fd00:ec2::23]"};
  const bool is_loopback = host.substr(0, 4) == "127." && host.find_first_not_of("0123456789.") == host.npos;
  return is_loopback || std::find(kHosts.begin(), kHosts.end(), host) != kHosts.end();
}

}  // namespace

Result<TemporaryKeys> keys_of_container(HttpConnections& http, const ContainerService& service,
                                        const os::StopFlag* stop) {
  if (service.url.substr(0, 8) != "https://" && !is_on_host(service.url)) {
    return Error(ErrorCode::kInvalidArgument, "AWS_CONTAINER_CREDENTIALS_FULL_URI names another host without https")
        .expected("https://, or http:// with localhost, 127.0.0.1, 169.254.170.2 or 169.254.170.23");
  }
  HttpRequest request{"GET", service.url};
  request.text_bytes_max = kKeysBytesMax;
  request.without_proxy = true;
  std::string token = service.token;
  if (!service.token_file.empty()) {
    CAIRN_TRY_ASSIGN(token, read_token(service.token_file));
  }
  if (!token.empty()) request.headers.push_back({"authorization", token});
  CAIRN_TRY_ASSIGN(const std::string text, answer_of(http, request, stop, "the container"));
  return keys_in_json(text, "the container's service");
}

Result<TemporaryKeys> keys_of_instance(HttpConnections& http, const InstanceService& service,
                                       const os::StopFlag* stop) {
  constexpr std::string_view kRoles = "/latest/meta-data/iam/security-credentials/";
  HttpRequest request{"PUT", service.url + "/latest/api/token"};
  const std::span<const std::span<const std::byte>> no_bytes;
  request.headers = {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}};
  request.body = &no_bytes;
  request.text_bytes_max = kKeysBytesMax;
  request.without_proxy = true;
  CAIRN_TRY_ASSIGN(const std::string token, answer_of(http, request, stop, "the instance"));
  request.method = "GET";
  request.body = nullptr;
  request.headers = {{"x-aws-ec2-metadata-token", token}};
  request.url = service.url + std::string(kRoles);
  CAIRN_TRY_ASSIGN(const std::string roles, answer_of(http, request, stop, "the instance"));
  const std::string role = roles.substr(0, roles.find_first_of("\r\n"));
  request.url = service.url + std::string(kRoles) + percent_encoded(role, SlashEncoding::kEncoded);
  CAIRN_TRY_ASSIGN(const std::string text, answer_of(http, request, stop, "the instance"));
  return keys_in_json(text, "the instance's service");
}

Result<TemporaryKeys> keys_of_web_identity(HttpConnections& http, const WebIdentity& identity,
                                           const os::StopFlag* stop) {
  CAIRN_TRY_ASSIGN(const std::string token, read_token(identity.token_file));
  const std::string form = query_text({{"Action", "AssumeRoleWithWebIdentity"},
                                       {"RoleArn", identity.role},
                                       {"RoleSessionName", identity.session_name},
                                       {"Version", "2011-06-15"},
                                       {"WebIdentityToken", token}});
  const std::array pieces{std::as_bytes(std::span(form))};
  const std::span<const std::span<const std::byte>> body(pieces);
  HttpRequest request{"POST", identity.url + "/"};
  request.headers = {{"content-type", "application/x-www-form-urlencoded"}};
  request.body = &body;
  request.text_bytes_max = kKeysBytesMax;
  CAIRN_TRY_ASSIGN(const std::string text, answer_of(http, request, stop, "the web identity"));
  return decode_assumed_role(text);
}

}  // namespace cairn::storage
