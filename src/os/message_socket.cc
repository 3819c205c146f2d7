#include "os/message_socket.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/little_endian.h"

namespace cairn::os {
namespace {

constexpr std::uint32_t kMagic = 0x314E5243;  // "CRN1"
// Memory grows with the received bytes, and not by the length in the header: a wrong length takes no memory.
constexpr std::size_t kReceiveBytes = 1024 * 1024;

Error gone(int error_number) {
  return Error::from_errno(error_number, "the other process can't be reached: its end of the socket is closed");
}

// A message carries at most one descriptor. The buffer has room for more: surplus descriptors are received and closed.
constexpr std::size_t kDescriptorsMax = 4;
union Control {
  cmsghdr align;
  char bytes[CMSG_SPACE(kDescriptorsMax * sizeof(int))];
};

void attach(msghdr& message, Control& control, int fd) {
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(sizeof(int));
  cmsghdr* const part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(part), &fd, sizeof fd);
}

// Takes all received descriptors; keeps the last in `fd` and closes the rest. Returns the number of descriptors.
std::size_t take_descriptors(msghdr& message, Fd& fd) {
  std::size_t count = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t here = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < here; ++i, ++count) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof(int), sizeof number);
      fd = Fd(number);
    }
  }
  return count;
}

}  // namespace

Result<std::pair<Fd, Fd>> MessageSocket::make_pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return Error::from_errno(errno, "can't make a pair of sockets");
  }
  return std::pair(Fd(ends[0]), Fd(ends[1]));
}

Result<void> MessageSocket::send(std::uint32_t kind, std::string_view bytes, int fd) {
  if (bytes.size() > kMessageBytesMax) {
    return Error(ErrorCode::kUnsupported, "a message that is too long")
        .expected("at most " + std::to_string(kMessageBytesMax) + " bytes")
        .actual(std::to_string(bytes.size()) + " bytes");
  }
  Header header;
  store_little_endian(store_little_endian(store_little_endian(header.data(), kMagic), kind),
                      std::uint64_t{bytes.size()});
  const std::lock_guard lock(sending_);
  if (broken_) return gone(EPIPE);
  iovec part{header.data(), header.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  if (fd >= 0) attach(message, control, fd);
  ssize_t sent = -1;
  do {
    sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return gone(errno);
  const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
  return send_rest(text.substr(static_cast<std::size_t>(sent)), bytes);
}

Result<void> MessageSocket::send_rest(std::string_view header, std::string_view bytes) {
  for (std::string_view part : {header, bytes}) {
    while (!part.empty()) {
      const ssize_t sent = ::send(socket_.get(), part.data(), part.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0) {
        broken_ = true;
        return gone(errno);
      }
      part.remove_prefix(static_cast<std::size_t>(sent));
    }
  }
  return {};
}

bool MessageSocket::send_at_once(std::uint32_t kind, std::string_view bytes) {
  const std::unique_lock lock(sending_, std::try_to_lock);
  if (!lock.owns_lock() || broken_ || bytes.size() > kMessageBytesMax) return false;
  std::string whole(kHeaderBytes, '\0');
  auto* const header = reinterpret_cast<std::byte*>(whole.data());
  store_little_endian(store_little_endian(store_little_endian(header, kMagic), kind), std::uint64_t{bytes.size()});
  whole += bytes;
  const ssize_t sent = ::send(socket_.get(), whole.data(), whole.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent <= 0) return false;
  return send_rest(std::string_view(whole).substr(static_cast<std::size_t>(sent)), {}).has_value();
}

Result<std::optional<Message>> MessageSocket::receive() {
  if (receive_failure_) return *receive_failure_;
  auto message = receive_next();
  if (!message) receive_failure_ = message.error();
  return message;
}

Result<std::optional<Message>> MessageSocket::receive_next() {
  CAIRN_TRY_ASSIGN(Step step, receive_header());
  if (step == Step::kGot) {
    CAIRN_TRY_ASSIGN(step, receive_bytes());
  }
  if (step == Step::kEnd) ended_ = true;
  if (step == Step::kEnd && header_got_ != 0) {
    return Error(ErrorCode::kUnavailable, "the other process ended in the middle of a message");
  }
  if (step != Step::kGot) return std::optional<Message>();
  header_got_ = 0;
  bytes_got_ = 0;
  return std::optional(std::exchange(arriving_, Message()));
}

Result<MessageSocket::Step> MessageSocket::receive_into(std::byte* to, std::size_t bytes_max, std::size_t& got) {
  iovec part{to, bytes_max};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  Control control{};
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t received = -1;
  do {
    received = recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (received < 0 && errno == EINTR);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Step::kNothing;
  // ECONNRESET: the peer closed its end without reading all of our bytes. No more bytes can pass in either direction.
  if (received == 0 || (received < 0 && errno == ECONNRESET)) return Step::kEnd;
  if (received < 0) return Error::from_errno(errno, "can't receive from the other process");
  const bool had_one = static_cast<bool>(arriving_.fd);
  const std::size_t descriptors = take_descriptors(message, arriving_.fd);
  if (descriptors + (had_one ? 1 : 0) > 1 || (message.msg_flags & MSG_CTRUNC) != 0) {
    return Error(ErrorCode::kCorrupt, "a message with more than one file descriptor");
  }
  got += static_cast<std::size_t>(received);
  return Step::kGot;
}

Result<MessageSocket::Step> MessageSocket::receive_header() {
  if (header_got_ == kHeaderBytes) return Step::kGot;
  while (header_got_ < kHeaderBytes) {
    CAIRN_TRY_ASSIGN(const Step step,
                     receive_into(header_.data() + header_got_, kHeaderBytes - header_got_, header_got_));
    if (step != Step::kGot) return step;
  }
  if (load_little_endian<std::uint32_t>(header_.data()) != kMagic) {
    return Error(ErrorCode::kCorrupt, "the bytes on the socket are not a message");
  }
  arriving_.kind = load_little_endian<std::uint32_t>(header_.data() + 4);
  length_ = load_little_endian<std::uint64_t>(header_.data() + 8);
  if (length_ > kMessageBytesMax) return Error(ErrorCode::kCorrupt, "a message that is too long");
  return Step::kGot;
}

Result<MessageSocket::Step> MessageSocket::receive_bytes() {
  while (bytes_got_ < length_) {
    const std::size_t room = std::min<std::uint64_t>(length_, bytes_got_ + kReceiveBytes);
    if (arriving_.bytes.size() < room) arriving_.bytes.resize(room);
    auto* const to = reinterpret_cast<std::byte*>(arriving_.bytes.data()) + bytes_got_;
    CAIRN_TRY_ASSIGN(const Step step, receive_into(to, room - bytes_got_, bytes_got_));
    if (step != Step::kGot) return step;
  }
  return Step::kGot;
}

void MessageSocket::shut_down() noexcept {
  const std::lock_guard lock(closing_);
  if (socket_.get() >= 0) ::shutdown(socket_.get(), SHUT_RDWR);
}

void MessageSocket::close() noexcept {
  shut_down();
  const std::scoped_lock lock(sending_, closing_);
  broken_ = true;
  socket_.reset();
}

}  // namespace cairn::os
