// HttpConnections: requests over HTTP and HTTPS, each on the caller's thread and on a connection of its own for the
// time of the request.
//
// Bytes go from the caller's memory to the library's buffer and back, with no further copy. TLS certificates are
// checked. Proxies are those of the environment. Redirects are not followed, so that no other host sees a signature.
// No time limits a whole transfer: a transfer ends when no byte came or went for the limit.
//
// HttpConnections is thread-safe. After a fork, the child makes its own.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "os/parallel.h"
#include "storage/bucket/http_library.h"
#include "storage/bucket/request_signature.h"

namespace cairn::storage {

// The begin of an answer.
struct HttpHead {
  int status = 0;
  std::vector<HttpHeader> headers;  // names in lower case, in the order of the answer

  bool is_success() const { return status >= 200 && status < 300; }
  // The value of the first header of the name; empty if there is none.
  std::string_view header(std::string_view name) const;
  std::optional<std::uint64_t> content_length() const;
};

// The memory for the body of an answer, which must have exactly this size.
struct HttpTarget {
  std::span<std::byte> bytes;
  bool with_crc = false;  // HttpEnd::crc32 is wanted
};

struct HttpRequest {
  std::string method;
  std::string url;
  std::vector<HttpHeader> headers = {};
  // The request's body, in order. Null: no body.
  const std::span<const std::span<const std::byte>>* body = nullptr;
  // If set: called at the begin of a successful answer, and gives the memory for its body, or refuses the answer. If
  // not, and for other answers, the body becomes HttpEnd::text.
  std::function<Result<HttpTarget>(const HttpHead& head)> target_of = {};
  std::uint64_t text_bytes_max = 16 << 20;  // of a successful answer; a longer text is refused
  // A new connection: on a used one the library repeats a request by itself if the connection turns out to be closed.
  bool on_new_connection = false;
  bool without_proxy = false;  // for addresses of the host
};

// The end of a transfer.
struct HttpEnd {
  enum class Kind : std::uint8_t {
    kAnswered,   // a whole answer, of any status
    kLost,       // the connection failed, or no byte came or went for the limit: another try may succeed
    kRefused,    // the answer is not one of the protocol
    kFailed,     // another try would fail too: no such protocol, a certificate that does not check
    kCancelled,  // the stop flag was set
  };
  Kind kind = Kind::kAnswered;
  HttpHead head = {};
  std::string text = {};            // of the body, without target_of; of an error the first 64 KiB
  std::uint64_t received = 0;       // bytes in the target, also if the connection failed
  std::uint32_t crc32 = 0;          // of the received bytes, with HttpTarget::with_crc
  bool was_sent = false;            // the server may have got the request
  std::optional<Error> error = {};  // unless kAnswered
};

struct HttpLimits {
  std::chrono::milliseconds stall{60'000};  // without a byte in either direction, and to connect
};

class HttpConnections {
 public:
  // `ca_file`: trusted certificates in place of the system's; empty: the system's. kUnavailable without libcurl.
  static Result<std::unique_ptr<HttpConnections>> open(const HttpLimits& limits, std::string ca_file);
  ~HttpConnections();
  HttpConnections(const HttpConnections&) = delete;
  HttpConnections& operator=(const HttpConnections&) = delete;

  // `stop` may be null; the transfer looks at it at least once a second.
  HttpEnd perform(const HttpRequest& request, const os::StopFlag* stop);

 private:
  HttpConnections(const curl::Functions& functions, const HttpLimits& limits, std::string ca_file);
  curl::Handle* take();
  void give_back(curl::Handle* handle);

  const curl::Functions& functions_;
  HttpLimits limits_;
  std::string ca_file_;
  int process_id_;
  std::mutex mutex_;
  std::vector<curl::Handle*> idle_;  // each with its open connections
};

}  // namespace cairn::storage
