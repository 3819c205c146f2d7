// HttpServer: a small HTTP server on 127.0.0.1 for tests, which can also break its answers.
//
// A thread for each connection. The handler is called by one thread at a time. The destructor closes all connections
// and joins the threads.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "os/fd.h"

namespace cairn::storage {

struct ServerRequest {
  std::string method;
  std::string path;                            // without percent encoding
  std::map<std::string, std::string> query;    // without percent encoding
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

struct ServerAnswer {
  enum class End : std::uint8_t {
    kWhole,
    kLost,     // the connection is closed in place of the answer
    kCut,      // the connection is reset after `sent_bytes` of the body
    kHang,     // no answer, until the server ends
    kEndless,  // no length, and the body again and again
  };
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  End end = End::kWhole;
  std::size_t sent_bytes = 0;
  std::string length = {};  // in place of the length of the body; "none": no length, and the connection's end
};

class HttpServer {
 public:
  using Handler = std::function<ServerAnswer(const ServerRequest& request)>;

  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // "http://127.0.0.1:12345"
  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  // All requests so far.
  std::vector<ServerRequest> requests() const;
  std::size_t connection_count() const;
  // Waits until that many requests have come.
  void wait_for_requests(std::size_t count);

 private:
  void accept_connections();
  void serve(int fd);
  ServerAnswer answer(const ServerRequest& request);
  bool send_answer(int fd, const ServerRequest& request, const ServerAnswer& answer);
  void hang();

  Handler handler_;
  os::Fd listener_;
  int port_ = 0;
  std::mutex handling_;  // one call of the handler at a time
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::vector<ServerRequest> requests_;
  std::list<os::Fd> connections_;  // closed by the destructor
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace cairn::storage
