// Reads any bytes as each message between a trainer and its writer: the first byte is the kind. An accepted message
// must encode to bytes that are accepted too and encode to equal bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "decoding_bounds.h"
#include "writer/messages.h"

namespace writer_messages_fuzz {

namespace {

using namespace cairn::writer;

// Returns the message, encoded again; nullopt if the bytes are refused.
std::optional<std::string> recode(MessageKind kind, std::string_view bytes) {
  const cairn::fuzz::DecodingBounds bounds(bytes.size());
  const auto again = [](const auto& message) {
    return message ? std::optional<std::string>(encode(*message)) : std::nullopt;
  };
  switch (kind) {
    case MessageKind::kHello: return again(decode_hello(bytes));
    case MessageKind::kClaim: return again(decode_claim(bytes));
    case MessageKind::kBegin: return again(decode_begin(bytes));
    case MessageKind::kStart: return again(decode_start(bytes));
    case MessageKind::kWritten: return again(decode_written_message(bytes));
    case MessageKind::kProgress: return again(decode_progress(bytes));
    case MessageKind::kArena:
    case MessageKind::kForgetArena:
    case MessageKind::kStaged: {
      const auto number = decode_number(bytes);
      return number ? std::optional(encode_number(*number)) : std::nullopt;
    }
    case MessageKind::kLayout: {
      const auto message = decode_layout(bytes);
      if (!message) return std::nullopt;
      if (message->layout.commit_plan)
        (void)message->layout.commit_plan->commit_request({}, {}, "/checkpoint").render();
      const auto encoded = encode_layout(message->slot, message->layout);
      if (!encoded) std::abort();  // a decoded layout is valid
      return *encoded;
    }
    case MessageKind::kAbandon:
    case MessageKind::kReady:
    case MessageKind::kClaimed:
    case MessageKind::kEnded: {
      const auto message = decode_outcome_message(bytes);
      if (kind == MessageKind::kEnded && message && message->outcome) {
        const auto report = decode_report(*message->outcome);
        if (report && !decode_report(encode_report(*report))) std::abort();
      }
      return again(message);
    }
  }
  return std::nullopt;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto kind = static_cast<MessageKind>(data[0]);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::optional<std::string> once = recode(kind, bytes);
  if (!once) return 0;
  if (recode(kind, *once) != once) std::abort();
  return 0;
}

}  // namespace writer_messages_fuzz
