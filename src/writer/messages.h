// The messages between a trainer and its writer process, and their bytes: docs/writer-protocol.md.
//
// Both sides are one installation of one version; what is decoded is checked all the same. Every decoder fails with
// kCorrupt on what its encoder can't have made.
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

// Goes up with every change of what is sent.
inline constexpr std::uint64_t kProtocolVersion = 6;
// Layouts that a writer keeps; a client names them by their slot.
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
  kProgress = 68,
  kEnded = 69,
};

struct HelloMessage {
  std::uint64_t protocol_version = kProtocolVersion;
  std::string cairn_version;
  std::int64_t trainer = 0;           // its process id
  std::chrono::milliseconds grace{};  // for what is staged when SIGTERM comes
  os::Priority priority;
};
std::string encode(const HelloMessage& message);
Result<HelloMessage> decode_hello(std::string_view bytes);

// A message about one thing: kArena, kForgetArena, kStart, kStaged.
std::string encode_number(std::uint64_t number);
Result<std::uint64_t> decode_number(std::string_view bytes);

// Where the files of a save lie in the arena: all that stays the same from save to save.
struct LayoutMessage {
  std::uint64_t slot = 0;  // what was there is forgotten
  StagedLayout layout;     // without the save ids in its indexes
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

// What came of something: kReady, kClaimed (a ticket), kEnded (a report), and the reason of kAbandon.
struct OutcomeMessage {
  std::uint64_t save = 0;  // 0 of kReady
  Result<std::string> outcome = std::string();
};
std::string encode(const OutcomeMessage& message);
Result<OutcomeMessage> decode_outcome_message(std::string_view bytes);

std::string encode_report(const commit::RankSaveReport& report);
Result<commit::RankSaveReport> decode_report(std::string_view bytes);

// Every save that has been started and has not ended; none at all is a sign of life too.
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
