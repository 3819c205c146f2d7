#include "format/manifest/commit_record.h"

#include "core/checked.h"
#include "core/checksum.h"
#include "core/little_endian.h"
#include "format/manifest/varint.h"

#include <array>
#include <cstring>
#include <string_view>

namespace cairn::manifest {
namespace {

constexpr std::string_view kRecordMagic = "CAIRNCMT";
constexpr std::uint32_t kRecordVersion = 3;
// A record without a plan has version 2, which earlier versions of Cairn read.
constexpr std::uint32_t kVersionWithoutPlan = 2;
constexpr std::uint32_t kVersionWithoutJobStart = 1;
constexpr std::size_t kRecordFooterBytes = 40;
// The least bytes of a file's entry in the body.
constexpr std::uint64_t kFileBytesMin = 6;
// Far above the record of millions of files. Every save reads the commit records of the checkpoints in its directory.
constexpr std::uint64_t kBodyBytesMax = std::uint64_t{256} << 20;

std::uint32_t crc_of(std::string_view text) { return crc32(std::as_bytes(std::span(text))); }

Error damaged(const char* what, std::uint64_t offset, std::uint32_t expected, std::uint32_t actual) {
  return Error(ErrorCode::kCorrupt, what)
      .offset(offset)
      .expected("CRC " + std::to_string(expected))
      .actual("CRC " + std::to_string(actual));
}

Result<CommitRecord> read_body(CodedReader& reader, std::uint32_t version) {
  CommitRecord record;
  CAIRN_TRY_ASSIGN(record.save_id.high, reader.fixed<std::uint64_t>());
  CAIRN_TRY_ASSIGN(record.save_id.low, reader.fixed<std::uint64_t>());
  CAIRN_TRY_ASSIGN(record.job_id.high, reader.fixed<std::uint64_t>());
  CAIRN_TRY_ASSIGN(record.job_id.low, reader.fixed<std::uint64_t>());
  if (version != kVersionWithoutJobStart) {
    CAIRN_TRY_ASSIGN(record.job_start, reader.fixed<std::uint64_t>());
    if (record.job_start > kJobStartMax) return reader.damaged("a job that starts after the year 2262");
  }
  CAIRN_TRY_ASSIGN(record.save_number, reader.varint());
  CAIRN_TRY_ASSIGN(const std::uint64_t count, reader.varint());
  if (count > reader.left() / kFileBytesMin) return reader.damaged("more files than there are bytes");
  record.files.resize(count);
  for (CommitRecord::File& file : record.files) {
    CAIRN_TRY_ASSIGN(const std::uint64_t name_bytes, reader.varint());
    CAIRN_TRY_ASSIGN(const std::string_view name, reader.text(name_bytes));
    file.name.assign(name);
    CAIRN_TRY_ASSIGN(file.size, reader.varint());
    CAIRN_TRY_ASSIGN(file.trailer_checksum, reader.fixed<std::uint32_t>());
  }
  if (version > kVersionWithoutPlan) {
    CAIRN_TRY_ASSIGN(record.plan, read_recorded_plan(reader, count));
  }
  if (reader.left() != 0) return reader.damaged("bytes left over in the commit record");
  return record;
}

}  // namespace

std::string encode_commit_record(const CommitRecord& record) {
  std::string out;
  append_fixed(out, record.save_id.high);
  append_fixed(out, record.save_id.low);
  append_fixed(out, record.job_id.high);
  append_fixed(out, record.job_id.low);
  append_fixed(out, record.job_start);
  append_varint(out, record.save_number);
  append_varint(out, record.files.size());
  for (const CommitRecord::File& file : record.files) {
    append_varint(out, file.name.size());
    out += file.name;
    append_varint(out, file.size);
    append_fixed(out, file.trailer_checksum);
  }
  const bool has_plan = !record.plan.ranks.empty();
  if (has_plan) append_recorded_plan(out, record.plan);
  std::string footer;
  append_fixed(footer, crc_of(out));
  append_fixed(footer, std::uint64_t{out.size()});
  append_fixed(footer, record.front_bytes);
  append_fixed(footer, record.front_checksum);
  append_fixed(footer, has_plan ? kRecordVersion : kVersionWithoutPlan);
  footer += kRecordMagic;
  append_fixed(out, crc_of(footer));
  return out + footer;
}

Result<std::optional<CommitRecord>> read_only_commit_record(const ByteSource& metadata_file) {
  if (metadata_file.size() < kRecordFooterBytes) return std::optional<CommitRecord>();
  const std::uint64_t footer_offset = metadata_file.size() - kRecordFooterBytes;
  std::array<std::byte, kRecordFooterBytes> bytes;
  CAIRN_TRY(metadata_file.read_at(footer_offset, bytes));
  const std::byte* footer = bytes.data();
  if (std::memcmp(footer + kRecordFooterBytes - kRecordMagic.size(), kRecordMagic.data(), kRecordMagic.size()) != 0) {
    return std::optional<CommitRecord>();
  }
  const auto footer_checksum = load_little_endian<std::uint32_t>(footer);
  const std::uint32_t footer_actual = crc32(std::span<const std::byte>(bytes).subspan(4));
  if (footer_checksum != footer_actual) {
    return damaged("the commit record's footer is damaged", footer_offset, footer_checksum, footer_actual);
  }
  const auto body_checksum = load_little_endian<std::uint32_t>(footer + 4);
  const auto body_bytes = load_little_endian<std::uint64_t>(footer + 8);
  const auto front_bytes = load_little_endian<std::uint64_t>(footer + 16);
  const auto front_checksum = load_little_endian<std::uint32_t>(footer + 24);
  const auto version = load_little_endian<std::uint32_t>(footer + 28);
  if (version < kVersionWithoutJobStart || version > kRecordVersion) {
    return Error(ErrorCode::kUnsupported, "a commit record of a later version")
        .offset(footer_offset)
        .expected(std::to_string(kRecordVersion) + " or earlier")
        .actual(std::to_string(version));
  }
  if (checked_add(front_bytes, body_bytes) != footer_offset) {
    return Error(ErrorCode::kCorrupt, "pickle and commit record do not fill the file")
        .offset(footer_offset)
        .expected(std::to_string(front_bytes) + " + " + std::to_string(body_bytes) + " bytes")
        .actual(std::to_string(footer_offset) + " bytes");
  }
  if (body_bytes > kBodyBytesMax) {
    return Error(ErrorCode::kUnsupported, "a commit record that is larger than any")
        .offset(footer_offset)
        .expected("at most " + std::to_string(kBodyBytesMax) + " bytes")
        .actual(std::to_string(body_bytes) + " bytes");
  }
  std::string body(body_bytes, '\0');
  CAIRN_TRY(metadata_file.read_at(front_bytes, std::as_writable_bytes(std::span(body))));
  const std::uint32_t body_actual = crc_of(body);
  if (body_checksum != body_actual) {
    return damaged("the commit record is damaged", front_bytes, body_checksum, body_actual);
  }
  CodedReader reader(std::as_bytes(std::span(body)), front_bytes);
  CAIRN_TRY_ASSIGN(CommitRecord record, read_body(reader, version));
  record.front_bytes = front_bytes;
  record.front_checksum = front_checksum;
  return std::optional(std::move(record));
}

Result<std::optional<CommitRecord>> read_commit_record(std::span<const std::byte> metadata_file) {
  CAIRN_TRY_ASSIGN(std::optional<CommitRecord> record, read_only_commit_record(MemorySource(metadata_file)));
  if (!record) return record;
  const std::uint32_t actual = crc32(metadata_file.first(record->front_bytes));
  if (record->front_checksum != actual) return damaged("the metadata is damaged", 0, record->front_checksum, actual);
  return record;
}

}  // namespace cairn::manifest
