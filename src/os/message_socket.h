// MessageSocket: one end of a connected pair of stream sockets between two processes of a machine. It carries messages:
// a kind, bytes, and perhaps a file descriptor.
//
// Any thread sends; one thread receives. SIGPIPE is never raised. A child made by fork does not keep the socket.
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

// What is longer is refused on both sides.
inline constexpr std::uint64_t kMessageBytesMax = std::uint64_t{1} << 30;

struct Message {
  std::uint32_t kind = 0;
  std::string bytes;
  Fd fd;  // of the receiver; empty if none was sent
};

class MessageSocket {
 public:
  // Both ends, closed by exec.
  static Result<std::pair<Fd, Fd>> make_pair();
  explicit MessageSocket(Fd socket) : socket_(std::move(socket)) {}

  // For poll(): readable when receive() has something to say.
  int fd() const noexcept { return socket_.get(); }

  // Waits until all of it is sent. kUnavailable if the other side is gone; what was sent of the message is then lost,
  // and every later call fails too. `fd` stays the caller's.
  Result<void> send(std::uint32_t kind, std::string_view bytes, int fd = -1);
  // The same if nobody has to wait for it; false if nothing was sent.
  bool send_at_once(std::uint32_t kind, std::string_view bytes);

  // The next message, if all of it has arrived; never waits. nullopt with has_ended(): the other side closed, after its
  // last message. kCorrupt if it sends what is no message, kUnavailable if it ended in the middle of one.
  Result<std::optional<Message>> receive();
  bool has_ended() const noexcept { return ended_; }

  // Ends the connection for both sides, and whoever waits in send(). By any thread.
  void shut_down() noexcept;
  // Gives the descriptor back. By whoever receives; whoever sends is told that the other side is gone.
  void close() noexcept;

 private:
  static constexpr std::size_t kHeaderBytes = 16;  // u32 magic, u32 kind, u64 length of the bytes
  using Header = std::array<std::byte, kHeaderBytes>;

  Result<void> send_rest(std::string_view header, std::string_view bytes);
  enum class Step : std::uint8_t { kGot, kNothing, kEnd };
  Result<Step> receive_header();
  Result<Step> receive_bytes();
  Result<Step> receive_into(std::byte* to, std::size_t bytes_max, std::size_t& got);

  ForkClosedFd socket_;
  std::mutex sending_;
  std::mutex closing_;   // else the descriptor's number could be another's by the time it is shut down
  bool broken_ = false;  // a message was sent in part
  bool ended_ = false;
  // What has arrived of the next message.
  Header header_{};
  std::size_t header_got_ = 0;
  std::uint64_t length_ = 0;
  std::size_t bytes_got_ = 0;
  Message arriving_;
};

}  // namespace cairn::os
