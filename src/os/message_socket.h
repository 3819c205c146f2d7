// MessageSocket: one end of a connected pair of stream sockets between two processes of a machine. A message is a kind,
// bytes, and optionally a file descriptor.
//
// Any thread may send; only one thread may receive. Never raises SIGPIPE. A child made by fork does not keep the
// socket.
#pragma once

#include <cairn/result.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "os/fd.h"
#include "os/fork_closed_fd.h"

namespace cairn::os {

// The longest message; both sides refuse longer messages.
inline constexpr std::uint64_t kMessageBytesMax = std::uint64_t{1} << 30;

struct Message {
  std::uint32_t kind = 0;
  std::string bytes;
  Fd fd;  // owned by the receiver; empty if the message has no descriptor
};

class MessageSocket {
 public:
  // Both ends, close-on-exec.
  static Result<std::pair<Fd, Fd>> make_pair();
  explicit MessageSocket(Fd socket) : socket_(std::move(socket)) {}

  // For poll(): readable when receive() will return a message, the end or an error.
  int fd() const noexcept { return socket_.get(); }

  // Waits until the whole message is sent. kUnavailable if the peer is gone: the sent part of the message is then lost,
  // and every later call fails too. The caller keeps `fd`.
  Result<void> send(std::uint32_t kind, std::string_view bytes, int fd = -1);
  // As send, without waiting for a second sender or for space in the socket; false if the message was not sent.
  bool send_at_once(std::uint32_t kind, std::string_view bytes);

  // The next message, if the message has arrived completely; never waits. nullopt with has_ended(): the peer has closed
  // its end after its last message. kCorrupt if the bytes are not a message, kUnavailable if the stream ended inside a
  // message. After an error the place of the next message is unknown: every later call returns the error again.
  Result<std::optional<Message>> receive();
  bool has_ended() const noexcept { return ended_; }

  // Ends the connection for both sides, and ends waiting calls of send(). From any thread.
  void shut_down() noexcept;
  // Closes the descriptor. Only for the receiving thread; in sending threads, send() then fails with kUnavailable.
  void close() noexcept;

 private:
  static constexpr std::size_t kHeaderBytes = 16;  // u32 magic, u32 kind, u64 length of the bytes
  using Header = std::array<std::byte, kHeaderBytes>;

  Result<void> send_rest(std::string_view header, std::string_view bytes);
  enum class Step : std::uint8_t { kGot, kNothing, kEnd };
  Result<std::optional<Message>> receive_next();
  Result<Step> receive_header();
  Result<Step> receive_bytes();
  Result<Step> receive_into(std::byte* to, std::size_t bytes_max, std::size_t& got);

  ForkClosedFd socket_;
  std::mutex sending_;
  std::mutex closing_;   // guards shutdown against a close, after which the number may belong to a new descriptor
  bool broken_ = false;  // a message was sent in part
  bool ended_ = false;
  std::optional<Error> receive_failure_;  // the first
  // The received part of the next message.
  Header header_{};
  std::size_t header_got_ = 0;
  std::uint64_t length_ = 0;
  std::size_t bytes_got_ = 0;
  Message arriving_;
};

}  // namespace cairn::os
