// Reads any bytes as each message between the ranks of a save: the first byte is the kind. An accepted message must
// encode to bytes that are accepted too and encode to equal bytes.
#include <cairn/version.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "commit/save_ticket.h"
#include "decoding_bounds.h"
#include "format/manifest/outcome.h"
#include "format/manifest/varint.h"
#include "save/save_messages.h"
#include "save_plan/assigned_item.h"
#include "save_plan/local_plans.h"
#include "save_plan/shared_items.h"

namespace rank_messages_fuzz {

namespace {

using namespace cairn::checkpointer;
namespace save_plan = cairn::save_plan;

enum class MessageKind : std::uint8_t {
  kLocalPlan,
  kAssignment,
  kWritten,
  kCommitted,
  kDecision,
  kTicket,
  kOutcome,
  kDigestedPlan,
  kIndices,
  kCommonPlan,
  kCommonShare
};

// `bytes` follow the version in a message. Adds the message twice, as two ranks with equal plans do. Each listed item
// has a path.
void read_local_plan(std::string_view bytes) {
  std::string message;
  cairn::manifest::append_text(message, cairn::kVersion);
  message += bytes;
  save_plan::LocalPlans plans;
  if (!plans.add(message)) return;
  if (!plans.add(message) || plans.plans().size() != 2) std::abort();
  if (plans.file_per_item(0) != plans.file_per_item(1)) std::abort();
  for (const cairn::plan::LocalItem& item : plans.plans()[0]) (void)plans.path_of(item.fqn);
}

// Returns the message, encoded again; nullopt if the bytes are refused.
std::optional<std::string> recode(MessageKind kind, std::string_view bytes) {
  const cairn::fuzz::DecodingBounds bounds(2 * bytes.size());
  const auto again = [](const auto& message, const auto& encode) {
    return message ? std::optional<std::string>(encode(*message)) : std::nullopt;
  };
  switch (kind) {
    case MessageKind::kLocalPlan: read_local_plan(bytes); return std::nullopt;
    case MessageKind::kAssignment: return again(decode_assignment(bytes), encode_assignment);
    case MessageKind::kWritten: return again(decode_written(bytes), encode_written);
    case MessageKind::kCommitted: return again(decode_committed(bytes), encode_committed);
    case MessageKind::kDecision: return again(decode_decision(bytes), encode_decision);
    case MessageKind::kTicket: return again(cairn::commit::decode_ticket(bytes), cairn::commit::encode_ticket);
    case MessageKind::kDigestedPlan: {
      const auto plan = save_plan::read_digested_plan(bytes);
      if (plan && plan->digests.size() + plan->local_plan.size() > bytes.size()) std::abort();
      return std::nullopt;
    }
    case MessageKind::kIndices:
      return again(save_plan::decode_indices(bytes, std::size_t{1} << 20), save_plan::encode_indices);
    case MessageKind::kCommonPlan:
      return again(save_plan::decode_common_plan(bytes), [](const save_plan::CommonPlan& plan) {
        return save_plan::encode_common_plan(plan.own, plan.local_plan);
      });
    case MessageKind::kCommonShare: {
      cairn::manifest::CodedReader reader(bytes);
      return again(save_plan::read_common_share(reader), [](const save_plan::CommonShare& share) {
        (void)save_plan::with_own_items(share, 1000);
        std::string encoded;
        save_plan::append_common_share(encoded, share);
        return encoded;
      });
    }
    case MessageKind::kOutcome: return cairn::manifest::encode_outcome(cairn::manifest::decode_outcome(bytes));
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

}  // namespace rank_messages_fuzz
