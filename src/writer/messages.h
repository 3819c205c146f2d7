// The messages between a trainer and its writer process, and their bytes: docs/writer-protocol.md.
//
// Both processes run the version of a single installation; decoders check every message nevertheless. Every decoder
// fails with kCorrupt on bytes that the encoder cannot have made.
#pragma once

#include <cairn/result.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commit/save_ticket.h"
#include "os/priority.h"
#include "writer/save_writer.h"

namespace cairn::writer {

// Increased with every change of the messages.
inline constexpr std::uint64_t kProtocolVersion = 13;
// The number of layouts that a writer process keeps. A client names a layout by its slot.
inline constexpr std::uint64_t kLayoutSlots = 4;

enum class MessageKind : std::uint32_t {
  // to the writer
  kHello = 1,
  kArena = 2,
  kForgetArena = 3,
  kLayout = 4,
  kStart = 5,
  kClaim = 6,
  kBegin = 7,
  kStaged = 8,
  kAbandon = 9,
  // to the trainer
  kReady = 65,
  kClaimed = 66,
  kWritten = 67,
  kProgress = 68,
  kEnded = 69,
};

struct HelloMessage {
  std::uint64_t protocol_version = kProtocolVersion;
  std::string cairn_version;
  std::int64_t trainer = 0;           // process id of the trainer
  std::chrono::milliseconds grace{};  // for staged saves, after SIGTERM
  os::Priority priority;
};
std::string encode(const HelloMessage& message);
Result<HelloMessage> decode_hello(std::string_view bytes);

// A message of a single number: kArena, kForgetArena, kStaged.
std::string encode_number(std::uint64_t number);
Result<std::uint64_t> decode_number(std::string_view bytes);

struct StartMessage {
  std::uint64_t save = 0;
  bool reports_written = false;  // the trainer listens: the writer sends kWritten
};
std::string encode(const StartMessage& message);
Result<StartMessage> decode_start(std::string_view bytes);

// The places of a save's files in the arena: the constant part of the requests for an unchanged state. A long layout
// travels in a memory file, whose descriptor comes with a message of the layout's length.
struct LayoutMessage {
  std::uint64_t slot = 0;  // replaces the slot's previous layout
  StagedLayout layout;     // the save ids in the indexes are not set
};
// kInvalidArgument if items are out of order.
Result<std::string> encode_layout(std::uint64_t slot, const StagedLayout& layout);
Result<LayoutMessage> decode_layout(std::string_view bytes);

struct ClaimMessage {
  std::uint64_t save = 0;
  ClaimRequest request;
};
std::string encode(const ClaimMessage& message);
Result<ClaimMessage> decode_claim(std::string_view bytes);

struct BeginMessage {
  std::uint64_t save = 0;
  SaveRequest request;  // without arena and layout
  std::uint64_t arena = 0;
  std::uint64_t layout_slot = 0;
};
std::string encode(const BeginMessage& message);
Result<BeginMessage> decode_begin(std::string_view bytes);

// The result of a request: kReady, kClaimed (a ticket), kEnded (a report), and the reason of kAbandon.
struct OutcomeMessage {
  std::uint64_t save = 0;  // 0 for kReady
  Result<std::string> outcome = std::string();
};
std::string encode(const OutcomeMessage& message);
Result<OutcomeMessage> decode_outcome_message(std::string_view bytes);

std::string encode_report(const commit::RankSaveReport& report);
Result<commit::RankSaveReport> decode_report(std::string_view bytes);

struct WrittenMessage {
  std::uint64_t save = 0;
  std::uint64_t bytes = 0;
  events::StepTime time;
};
std::string encode(const WrittenMessage& message);
Result<WrittenMessage> decode_written_message(std::string_view bytes);

// All saves that have been started and have not ended. An empty list still shows that the writer process lives.
struct ProgressMessage {
  struct OfSave {
    std::uint64_t save = 0;
    commit::ProgressReport report;
  };
  std::vector<OfSave> saves;
};
std::string encode(const ProgressMessage& message);
Result<ProgressMessage> decode_progress(std::string_view bytes);

}  // namespace cairn::writer
