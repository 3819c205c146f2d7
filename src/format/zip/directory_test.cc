#include "format/zip/directory.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "core/checksum.h"
#include "core/little_endian.h"
#include "format/zip/record_writer.h"

namespace cairn::zip {
namespace {

struct Content {
  std::string name;
  std::string bytes;
  bool late_crc = false;
  PaddingBytes padding = 0;
};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::byte* grow(std::string& out, std::size_t bytes) {
  out.resize(out.size() + bytes);
  return reinterpret_cast<std::byte*>(out.data()) + out.size() - bytes;
}

std::string make_archive(const std::vector<Content>& contents) {
  std::string out;
  std::vector<Record> records;
  for (const Content& content : contents) {
    Record record{content.name, content.bytes.size(), out.size(), crc32(bytes_of(content.bytes)), content.late_crc};
    render_local_header(record, grow(out, local_header_bytes(record, content.padding)), content.padding);
    out += content.bytes;
    render_descriptor(record, grow(out, descriptor_bytes(record)));
    records.push_back(record);
  }
  End end{records.size(), out.size(), 0};
  for (const Record& record : records) render_directory_entry(record, grow(out, directory_entry_bytes(record)));
  end.directory_bytes = out.size() - end.directory_offset;
  render_end(end, grow(out, end_bytes(end)));
  return out;
}

const std::vector<Content> kThreeRecords{
    {"archive/data.pkl", "pickled"}, {"archive/data/0", std::string(100, 'x'), true, 60}, {"archive/version", "3\n"}};

ErrorCode code_of(const std::string& archive) {
  const auto directory = read_directory(MemorySource(bytes_of(archive)));
  EXPECT_FALSE(directory);
  return directory ? ErrorCode::kInternal : directory.error().code();
}

TEST(Directory, IsReadBackAsWritten) {
  const std::string archive = make_archive(kThreeRecords);
  const MemorySource source(bytes_of(archive));
  const Directory directory = read_directory(source).value();
  EXPECT_EQ(directory.prefix, "archive/");
  ASSERT_EQ(directory.entries.size(), 3u);
  for (const Content& content : kThreeRecords) {
    const DirectoryEntry* entry = directory.find(content.name.substr(8));
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->crc, crc32(bytes_of(content.bytes)));
    EXPECT_EQ(archive.substr(payload_offset(source, *entry).value(), entry->size), content.bytes);
  }
  EXPECT_EQ(directory.find("data"), nullptr);
  EXPECT_EQ(directory.find(""), nullptr);
}

TEST(Directory, IsFoundBeforeAComment) {
  std::string archive = make_archive(kThreeRecords);
  archive[archive.size() - 2] = 100;
  archive += std::string(100, '?');
  EXPECT_EQ(read_directory(MemorySource(bytes_of(archive))).value().entries.size(), 3u);
}

TEST(Directory, IsFoundBeforeTheLongestComment) {
  std::string archive = make_archive(kThreeRecords);
  archive.replace(archive.size() - 2, 2, "\xFF\xFF");
  archive += std::string(0xFFFF, '?');
  const MemorySource source(bytes_of(archive));
  const Directory directory = read_directory(source).value();
  ASSERT_EQ(directory.entries.size(), 3u);
  EXPECT_EQ(archive.substr(payload_offset(source, directory.entries[0]).value(), 7), "pickled");
  archive += '?';
  EXPECT_EQ(code_of(archive), ErrorCode::kUnsupported) << "no comment is longer";
}

TEST(Directory, IsReadWholeBeyondTheTail) {
  std::vector<Content> contents;
  for (int i = 0; i < 500; ++i) contents.push_back({"a/data/" + std::to_string(i), std::to_string(i)});
  const std::string archive = make_archive(contents);
  const MemorySource source(bytes_of(archive));
  const Directory directory = read_directory(source).value();
  ASSERT_EQ(directory.entries.size(), 500u);
  for (int i = 0; i < 500; ++i) {
    const DirectoryEntry* entry = directory.find("data/" + std::to_string(i));
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(archive.substr(payload_offset(source, *entry).value(), entry->size), std::to_string(i));
  }
}

TEST(Directory, RefusesANameUsedTwice) {
  EXPECT_EQ(code_of(make_archive({{"a/x", "1"}, {"a/x", "2"}})), ErrorCode::kCorrupt);
  std::vector<Content> many;
  for (int i = 0; i < 50; ++i) many.push_back({"a/" + std::to_string(i % 49), ""});
  EXPECT_EQ(code_of(make_archive(many)), ErrorCode::kCorrupt);
}

TEST(Directory, OtherFormatIsUnsupported) {
  EXPECT_EQ(code_of(""), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of(std::string(10000, '\0')), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of(make_archive({{"no_prefix", "1"}})), ErrorCode::kUnsupported);
}

TEST(Directory, CrcZeroOfBytesMeansNotComputed) {
  std::string archive = make_archive(kThreeRecords);
  const Directory before = read_directory(MemorySource(bytes_of(archive))).value();
  ASSERT_TRUE(before.entries[0].crc);
  archive.replace(before.offset + 16, 4, 4, '\0');
  const Directory after = read_directory(MemorySource(bytes_of(archive))).value();
  EXPECT_FALSE(after.entries[0].crc);
  EXPECT_TRUE(read_directory(MemorySource(bytes_of(make_archive({{"a/empty", ""}})))).value().entries[0].crc);
}

// Damage in the directory must cause an error, or leave a directory whose ranges lie inside the archive.
TEST(Directory, DamageStaysInsideTheArchive) {
  const std::string good = make_archive(kThreeRecords);
  const std::uint64_t begin = read_directory(MemorySource(bytes_of(good))).value().offset;
  std::size_t refused = 0;
  for (std::size_t i = begin; i < good.size(); ++i) {
    for (const char change : {'\x01', '\x80', '\xFF'}) {
      std::string archive = good;
      archive[i] = static_cast<char>(archive[i] ^ change);
      const MemorySource source(bytes_of(archive));
      const auto directory = read_directory(source);
      refused += !directory;
      if (!directory) continue;
      for (const DirectoryEntry& entry : directory->entries) {
        const auto offset = payload_offset(source, entry);
        EXPECT_TRUE(!offset || *offset + entry.size <= archive.size());
      }
    }
  }
  EXPECT_GT(refused, 200u);
}

TEST(Directory, RefusesRangesBeyondTheArchive) {
  const std::string good = make_archive(kThreeRecords);
  const Directory directory = read_directory(MemorySource(bytes_of(good))).value();
  const auto with = [&](std::uint64_t offset, std::uint32_t value) {
    std::string archive = good;
    store_little_endian(reinterpret_cast<std::byte*>(archive.data()) + offset, value);
    return code_of(archive);
  };
  EXPECT_EQ(with(directory.offset + 24, 1000000), ErrorCode::kCorrupt);        // size
  EXPECT_EQ(with(directory.offset + 42, 1000000), ErrorCode::kCorrupt);        // place of the local header
  EXPECT_EQ(with(directory.offset + 42, 0xFFFFFFFF), ErrorCode::kCorrupt);     // announces a field that is missing
  EXPECT_EQ(with(directory.end_offset + 12, 1000000), ErrorCode::kCorrupt);    // bytes of the directory
  EXPECT_EQ(with(directory.end_offset + 16, 1000000), ErrorCode::kCorrupt);    // place of the directory
  EXPECT_EQ(with(directory.end_offset + 8, 0xFFFEFFFE), ErrorCode::kCorrupt);  // number of entries
}

TEST(LocalHeader, MustBelongToTheEntry) {
  const std::string good = make_archive(kThreeRecords);
  const auto code_with = [&](std::size_t offset, char value) {
    std::string archive = good;
    archive[offset] = value;
    const MemorySource source(bytes_of(archive));
    const auto payload = payload_offset(source, read_directory(source).value().entries[0]);
    return payload ? std::optional<ErrorCode>() : payload.error().code();
  };
  EXPECT_EQ(code_with(8, 0), std::nullopt);
  EXPECT_EQ(code_with(0, 'X'), ErrorCode::kCorrupt);   // signature
  EXPECT_EQ(code_with(8, 8), ErrorCode::kCorrupt);     // deflated, according to the local header only
  EXPECT_EQ(code_with(22, 99), ErrorCode::kCorrupt);   // wrong size
  EXPECT_EQ(code_with(26, 9), ErrorCode::kCorrupt);    // length of the name
  EXPECT_EQ(code_with(40, 'Q'), ErrorCode::kCorrupt);  // wrong name
}

TEST(LocalHeader, CompressionIsUnsupported) {
  std::string archive = make_archive(kThreeRecords);
  const Directory directory = read_directory(MemorySource(bytes_of(archive))).value();
  archive[directory.offset + 10] = 8;
  const MemorySource source(bytes_of(archive));
  const auto payload = payload_offset(source, read_directory(source).value().entries[0]);
  ASSERT_FALSE(payload);
  EXPECT_EQ(payload.error().code(), ErrorCode::kUnsupported);
}

// An archive of more than 4 GiB. Only the archive's ends are in memory; the bytes between are zeros.
class SparseSource final : public ByteSource {
 public:
  void put(std::uint64_t offset, std::string bytes) {
    size_ = std::max<std::uint64_t>(size_, offset + bytes.size());
    pieces_[offset] = std::move(bytes);
  }
  std::uint64_t size() const override { return size_; }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (!holds(offset, target.size())) return Error(ErrorCode::kCorrupt, "beyond the end");
    std::fill(target.begin(), target.end(), std::byte{0});
    for (const auto& [start, bytes] : pieces_) {
      const std::uint64_t begin = std::max(start, offset);
      const std::uint64_t end = std::min(start + bytes.size(), offset + target.size());
      if (begin < end) std::memcpy(target.data() + (begin - offset), bytes.data() + (begin - start), end - begin);
    }
    return {};
  }

 private:
  std::map<std::uint64_t, std::string> pieces_;
  std::uint64_t size_ = 0;
};

TEST(Directory, ReachesBeyondFourGiB) {
  constexpr std::uint64_t kHuge = 5'000'000'000;
  SparseSource source;
  const Record big{"archive/data/0", kHuge, 0, 7, true};
  Record after{"archive/version", 2, 0, 8};
  std::string head;
  render_local_header(big, grow(head, local_header_bytes(big)));
  std::string tail;
  after.header_offset = head.size() + kHuge + descriptor_bytes(big);
  EXPECT_EQ(descriptor_bytes(big), 24u);
  render_descriptor(big, grow(tail, descriptor_bytes(big)));
  render_local_header(after, grow(tail, local_header_bytes(after)));
  tail += "3\n";
  End end{2, head.size() + kHuge + tail.size(), 0};
  for (const Record& record : {big, after}) render_directory_entry(record, grow(tail, directory_entry_bytes(record)));
  end.directory_bytes = head.size() + kHuge + tail.size() - end.directory_offset;
  EXPECT_EQ(end_bytes(end), 98u);
  render_end(end, grow(tail, end_bytes(end)));
  source.put(0, head);
  source.put(head.size() + kHuge, tail);

  const Directory directory = read_directory(source).value();
  ASSERT_EQ(directory.entries.size(), 2u);
  EXPECT_EQ(directory.entries[0].size, kHuge);
  EXPECT_EQ(payload_offset(source, directory.entries[0]).value(), head.size());
  EXPECT_EQ(directory.entries[1].local_header_offset, after.header_offset);
  EXPECT_EQ(payload_offset(source, directory.entries[1]).value(), after.header_offset + local_header_bytes(after));
}

}  // namespace
}  // namespace cairn::zip
