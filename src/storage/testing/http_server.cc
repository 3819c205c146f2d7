#include "storage/testing/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/whole_number.h"
#include "storage/bucket/bucket_address.h"
#include "storage/bucket/store_time.h"

namespace cairn::storage {
namespace {

bool send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void reset_at_close(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

std::string decoded(std::string_view text) { return percent_decoded(text).value(); }

void split_target(std::string_view target, ServerRequest& request) {
  const std::size_t mark = std::min(target.find('?'), target.size());
  request.path = decoded(target.substr(0, mark));
  std::string_view query = target.substr(std::min(mark + 1, target.size()));
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(item.size() + 1, query.size()));
    const std::size_t equals = std::min(item.find('='), item.size());
    request.query[decoded(item.substr(0, equals))] = decoded(item.substr(std::min(equals + 1, item.size())));
  }
}

// Reads requests from a connection.
class RequestReader {
 public:
  explicit RequestReader(int fd) : fd_(fd) {}

  std::optional<ServerRequest> next() {
    std::size_t head = 0;
    while ((head = buffer_.find("\r\n\r\n")) == std::string::npos) {
      if (!receive()) return std::nullopt;
    }
    ServerRequest request;
    std::string_view rest = std::string_view(buffer_).substr(0, head + 2);
    const std::string_view first = take_line(rest);
    const std::size_t space = first.find(' ');
    request.method = first.substr(0, space);
    split_target(first.substr(space + 1, first.rfind(' ') - space - 1), request);
    while (!rest.empty()) {
      const std::string_view line = take_line(rest);
      const std::size_t colon = line.find(':');
      std::string name(line.substr(0, colon));
      std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
      const std::size_t value = line.find_first_not_of(' ', colon + 1);
      request.headers[name] = value == std::string_view::npos ? "" : line.substr(value);
    }
    buffer_.erase(0, head + 4);
    const auto length = whole_number<std::size_t>(request.header("content-length")).value_or(0);
    while (buffer_.size() < length) {
      if (!receive()) return std::nullopt;
    }
    request.body = buffer_.substr(0, length);
    buffer_.erase(0, length);
    return request;
  }

 private:
  static std::string_view take_line(std::string_view& text) {
    const std::size_t end = text.find("\r\n");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 2);
    return line;
  }
  bool receive() {
    char bytes[64 << 10];
    const ssize_t received = recv(fd_, bytes, sizeof bytes, 0);
    if (received <= 0) return false;
    buffer_.append(bytes, static_cast<std::size_t>(received));
    return true;
  }

  int fd_;
  std::string buffer_;
};

}  // namespace

HttpServer::HttpServer(Handler handler)
    : handler_(std::move(handler)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool listens =
      bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0 && listen(listener_.get(), 128) == 0;
  if (!listens) throw std::system_error(errno, std::generic_category(), "listening on 127.0.0.1");
  getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { accept_connections(); });
}

HttpServer::~HttpServer() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    for (const os::Fd& connection : connections_) shutdown(connection.get(), SHUT_RDWR);
  }
  changed_.notify_all();
  shutdown(listener_.get(), SHUT_RDWR);
  acceptor_.join();
  for (std::thread& thread : threads_) thread.join();
}

void HttpServer::accept_connections() {
  for (;;) {
    os::Fd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const std::lock_guard lock(mutex_);
    if (is_ending_ || !connection) return;
    const int fd = connection.get();
    connections_.push_back(std::move(connection));
    threads_.emplace_back([this, fd] { serve(fd); });
  }
}

void HttpServer::serve(int fd) {
  RequestReader reader(fd);
  while (const std::optional<ServerRequest> request = reader.next()) {
    if (!send_answer(fd, *request, answer(*request))) break;
  }
  const std::lock_guard lock(mutex_);
  connections_.remove_if([fd](const os::Fd& connection) { return connection.get() == fd; });  // closes it
}

ServerAnswer HttpServer::answer(const ServerRequest& request) {
  const std::lock_guard handling(handling_);
  ServerAnswer answer = handler_(request);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(request);
  }
  changed_.notify_all();
  return answer;
}

bool HttpServer::send_answer(int fd, const ServerRequest& request, const ServerAnswer& answer) {
  using End = ServerAnswer::End;
  if (answer.end == End::kLost) return false;
  if (answer.end == End::kHang) {
    hang();
    return false;
  }
  std::string head = "HTTP/1.1 " + std::to_string(answer.status) + " status\r\n";
  for (const auto& [name, value] : answer.headers) head.append(name).append(": ").append(value).append("\r\n");
  const bool has_length = answer.end != End::kEndless && answer.length != "none";
  if (has_length) {
    head += "Content-Length: " + (answer.length.empty() ? std::to_string(answer.body.size()) : answer.length) + "\r\n";
  }
  if (!send_all(fd, head + "\r\n")) return false;
  if (request.method == "HEAD") return true;
  if (answer.end == End::kCut) {
    send_all(fd, std::string_view(answer.body).substr(0, answer.sent_bytes));
    reset_at_close(fd);
    return false;
  }
  while (answer.end == End::kEndless && send_all(fd, answer.body)) {
  }
  return send_all(fd, answer.body) && has_length && answer.length.empty();
}

void HttpServer::hang() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return is_ending_; });
}

std::vector<ServerRequest> HttpServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::size_t HttpServer::connection_count() const {
  const std::lock_guard lock(mutex_);
  return threads_.size();
}

void HttpServer::wait_for_requests(std::size_t count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return requests_.size() >= count; });
}

}  // namespace cairn::storage
