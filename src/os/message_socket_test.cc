#include "os/message_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <thread>
#include <vector>

namespace cairn::os {
namespace {

struct Pair {
  Pair() : Pair(MessageSocket::make_pair().value()) {}
  explicit Pair(std::pair<Fd, Fd> ends) : a(std::move(ends.first)), b(std::move(ends.second)) {}
  MessageSocket a;
  MessageSocket b;
};

// Waits for the next message, or for the end.
Result<std::optional<Message>> next(MessageSocket& socket) {
  while (true) {
    auto message = socket.receive();
    if (!message || *message || socket.has_ended()) return message;
    pollfd waiting{socket.fd(), POLLIN, 0};
    poll(&waiting, 1, -1);
  }
}

TEST(MessageSocket, DeliversMessagesInOrder) {
  Pair pair;
  ASSERT_TRUE(pair.a.send(1, "one"));
  ASSERT_TRUE(pair.a.send(2, ""));
  EXPECT_TRUE(pair.a.send_at_once(3, "three"));
  for (const auto& [kind, bytes] : {std::pair(1u, "one"), std::pair(2u, ""), std::pair(3u, "three")}) {
    const auto message = next(pair.b).value();
    ASSERT_TRUE(message);
    EXPECT_EQ(message->kind, kind);
    EXPECT_EQ(message->bytes, bytes);
    EXPECT_FALSE(message->fd);
  }
  EXPECT_FALSE(pair.b.receive().value());
  EXPECT_FALSE(pair.b.has_ended());
}

TEST(MessageSocket, MessageAboveTheBufferIsWhole) {
  Pair pair;
  std::string large(50'000'000, 'x');
  for (std::size_t i = 0; i < large.size(); i += 4099) large[i] = static_cast<char>(i);
  std::thread sender([&] {
    EXPECT_TRUE(pair.a.send(7, large));
    EXPECT_TRUE(pair.a.send(8, "after it"));
  });
  const auto message = next(pair.b).value();
  ASSERT_TRUE(message);
  EXPECT_TRUE(message->bytes == large);
  EXPECT_EQ(next(pair.b).value()->bytes, "after it");
  sender.join();
}

TEST(MessageSocket, MessagesOfThreadsStayWhole) {
  Pair pair;
  constexpr int kThreads = 4;
  constexpr int kEach = 50;
  std::vector<std::jthread> senders;
  for (int thread = 0; thread < kThreads; ++thread) {
    senders.emplace_back([&, thread] {
      for (int i = 0; i < kEach; ++i) {
        EXPECT_TRUE(
            pair.a.send(static_cast<std::uint32_t>(thread), std::string(100'000, static_cast<char>('a' + thread))));
      }
    });
  }
  for (int i = 0; i < kThreads * kEach; ++i) {
    const auto message = next(pair.b).value();
    ASSERT_TRUE(message);
    EXPECT_TRUE(message->bytes == std::string(100'000, static_cast<char>('a' + message->kind)));
  }
}

TEST(MessageSocket, PassesADescriptorWithAMessage) {
  Pair pair;
  const Fd memory(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(write(memory.get(), "content", 7), 7);
  ASSERT_TRUE(pair.a.send(1, "without"));
  ASSERT_TRUE(pair.a.send(2, "with", memory.get()));
  ASSERT_TRUE(pair.a.send(3, "without"));
  EXPECT_FALSE(next(pair.b).value()->fd);
  const auto message = next(pair.b).value();
  ASSERT_TRUE(message && message->fd);
  EXPECT_EQ(fcntl(message->fd.get(), F_GETFD), FD_CLOEXEC);
  char text[7];
  ASSERT_EQ(pread(message->fd.get(), text, 7, 0), 7);
  EXPECT_EQ(std::string(text, 7), "content");
  EXPECT_FALSE(next(pair.b).value()->fd);
}

TEST(MessageSocket, DistinguishesTheEndFromAnError) {
  auto ends = MessageSocket::make_pair().value();
  MessageSocket socket(std::move(ends.first));
  {
    MessageSocket other(std::move(ends.second));
    ASSERT_TRUE(other.send(5, "the last one"));
  }
  EXPECT_EQ(next(socket).value()->bytes, "the last one");
  EXPECT_FALSE(next(socket).value());
  EXPECT_TRUE(socket.has_ended());
  const auto sent = socket.send(1, "too late");  // and raises no SIGPIPE
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code(), ErrorCode::kUnavailable);
  EXPECT_FALSE(socket.send_at_once(1, "too late"));
}

TEST(MessageSocket, AMessageThatIsCutOffIsAnError) {
  auto ends = MessageSocket::make_pair().value();
  std::string whole;
  {
    auto recorded = MessageSocket::make_pair().value();
    MessageSocket sender(std::move(recorded.first));
    ASSERT_TRUE(sender.send(1, "message"));
    whole.resize(100);
    whole.resize(static_cast<std::size_t>(read(recorded.second.get(), whole.data(), whole.size())));
  }
  for (std::size_t length = 1; length < whole.size(); ++length) {
    auto pair = MessageSocket::make_pair().value();
    ASSERT_EQ(write(pair.first.get(), whole.data(), length), static_cast<ssize_t>(length));
    pair.first = Fd();
    MessageSocket receiver(std::move(pair.second));
    const auto received = next(receiver);
    ASSERT_FALSE(received) << length;
    EXPECT_EQ(received.error().code(), ErrorCode::kUnavailable);
  }
}

TEST(MessageSocket, RefusesBytesThatAreNoMessage) {
  std::string huge("CRN1\1\0\0\0\0\0\0\0\1\0\0\0", 16);  // 2^32 bytes
  for (const std::string& bytes : {std::string("HTTP/1.1 200 OK "), huge}) {
    auto pair = MessageSocket::make_pair().value();
    ASSERT_EQ(write(pair.first.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    MessageSocket receiver(std::move(pair.second));
    EXPECT_EQ(next(receiver).error().code(), ErrorCode::kCorrupt);
    ASSERT_EQ(write(pair.first.get(), "more", 4), 4);
    const auto again = receiver.receive();
    ASSERT_FALSE(again) << "no later bytes are read as a message";
    EXPECT_EQ(again.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(MessageSocket, RefusesSeveralDescriptors) {
  const Fd lowest_before(dup(0));
  const int lowest = lowest_before.get();
  {
    auto pair = MessageSocket::make_pair().value();
    union {
      cmsghdr align;
      char bytes[CMSG_SPACE(3 * sizeof(int))];
    } control{};
    char byte = 'C';
    iovec part{&byte, 1};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.bytes;
    message.msg_controllen = sizeof control.bytes;
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(3 * sizeof(int));
    const int fds[3] = {lowest, lowest, lowest};
    std::memcpy(CMSG_DATA(rights), fds, sizeof fds);
    ASSERT_EQ(sendmsg(pair.first.get(), &message, 0), 1);
    MessageSocket receiver(std::move(pair.second));
    EXPECT_EQ(next(receiver).error().code(), ErrorCode::kCorrupt);
  }
  const Fd after(dup(0));
  EXPECT_EQ(after.get(), lowest + 1);
}

TEST(MessageSocket, IsNotKeptByAChildMadeByFork) {
  auto ends = MessageSocket::make_pair().value();
  MessageSocket kept(std::move(ends.first));
  auto other = std::make_unique<MessageSocket>(std::move(ends.second));
  int hold[2];
  ASSERT_EQ(pipe(hold), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    ::close(hold[1]);
    (void)!read(hold[0], &byte, 1);  // until the parent closes its end
    _exit(other->fd() == -1 && !other->send(1, "from the child") ? 0 : 1);
  }
  ::close(hold[0]);
  other.reset();
  EXPECT_FALSE(next(kept).value());  // although the child lives
  EXPECT_TRUE(kept.has_ended());
  ::close(hold[1]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

TEST(MessageSocket, ShutdownWakesABlockedSender) {
  Pair pair;
  std::thread sender([&] { EXPECT_FALSE(pair.a.send(1, std::string(50'000'000, 'x'))); });
  pollfd waiting{pair.b.fd(), POLLIN, 0};
  poll(&waiting, 1, -1);
  pair.a.shut_down();
  sender.join();
}

}  // namespace
}  // namespace cairn::os
