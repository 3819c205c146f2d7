#include "format/manifest/recorded_plan.h"

#include <limits>

namespace cairn::manifest {
namespace {

// The least bytes of a rank: a number of files, and a fingerprint.
constexpr std::uint64_t kRankBytesMin = 17;

void append_number(std::string& out, std::uint64_t number) {
  std::byte bytes[sizeof number];
  store_little_endian(bytes, number);
  out.append(reinterpret_cast<const char*>(bytes), sizeof bytes);
}

}  // namespace

void append_recorded_plan(std::string& out, const RecordedPlan& plan) {
  append_varint(out, plan.ranks.size());
  for (const RecordedPlan::Rank& rank : plan.ranks) {
    append_varint(out, rank.file_count);
    append_number(out, rank.local_plan.high);
    append_number(out, rank.local_plan.low);
  }
}

Result<RecordedPlan> read_recorded_plan(CodedReader& reader, std::uint64_t file_count) {
  RecordedPlan plan;
  CAIRN_TRY_ASSIGN(const std::uint64_t rank_count, reader.varint());
  if (rank_count > reader.left() / kRankBytesMin) return reader.damaged("more ranks than there are bytes");
  plan.ranks.resize(rank_count);
  std::uint64_t files_left = file_count;
  for (RecordedPlan::Rank& rank : plan.ranks) {
    CAIRN_TRY_ASSIGN(const std::uint64_t files, reader.varint());
    if (files > files_left || files > std::numeric_limits<std::uint32_t>::max()) {
      return reader.damaged("ranks with more files than the commit record has");
    }
    files_left -= files;
    rank.file_count = static_cast<std::uint32_t>(files);
    CAIRN_TRY_ASSIGN(rank.local_plan.high, reader.fixed<std::uint64_t>());
    CAIRN_TRY_ASSIGN(rank.local_plan.low, reader.fixed<std::uint64_t>());
  }
  if (files_left != 0) return reader.damaged("files that belong to no rank");
  return plan;
}

}  // namespace cairn::manifest
