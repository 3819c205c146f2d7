#include "format/zip/directory.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

#include "core/checked.h"
#include "core/little_endian.h"
#include "format/zip/layout.h"

namespace cairn::zip {
namespace {

// The end record is first searched within the archive's last 4 KiB: torch.save and Cairn write no comment.
constexpr std::uint64_t kTailBytes = 4096;
// An end record with the longest comment, which has 2^16 - 1 bytes.
constexpr std::uint64_t kLongTailBytes = kEndBytes + 0xFFFF;
// Far above any archive that torch can read in reasonable time: a false size cannot fill the memory.
constexpr std::uint64_t kDirectoryBytesMax = 256 << 20;
// Up to this number, a scan of all entries is faster than a sorted index.
constexpr std::size_t kLinearEntriesMax = 16;

std::uint16_t u16(const std::byte* from) { return load_little_endian<std::uint16_t>(from); }
std::uint32_t u32(const std::byte* from) { return load_little_endian<std::uint32_t>(from); }
std::uint64_t u64(const std::byte* from) { return load_little_endian<std::uint64_t>(from); }

Error not_a_zip(const char* reason) { return Error(ErrorCode::kUnsupported, reason); }
Error damaged(const char* what, std::uint64_t offset) { return Error(ErrorCode::kCorrupt, what).offset(offset); }

// The last bytes of the archive, read once; read a second time for an archive with a long comment. The tail usually
// contains all end records and the directory.
class Tail {
 public:
  explicit Tail(const ByteSource& archive) : archive_(archive) {}

  Result<void> read() { return read_into(short_buffer_); }
  Result<void> read_long() {
    long_buffer_.resize(kLongTailBytes);
    return read_into(long_buffer_);
  }

  std::uint64_t begin() const { return begin_; }
  const std::byte* at(std::uint64_t offset) const { return bytes_.data() + (offset - begin_); }
  bool holds(std::uint64_t offset) const { return offset >= begin_; }

  // The caller has checked that the range lies inside the archive.
  Result<void> copy(std::uint64_t offset, std::span<std::byte> target) const {
    if (!holds(offset)) return archive_.read_at(offset, target);
    std::memcpy(target.data(), at(offset), target.size());
    return {};
  }

 private:
  Result<void> read_into(std::span<std::byte> buffer) {
    const std::span<std::byte> tail = buffer.first(std::min<std::uint64_t>(archive_.size(), buffer.size()));
    begin_ = archive_.size() - tail.size();
    bytes_ = tail;
    return archive_.read_at(begin_, tail);
  }

  const ByteSource& archive_;
  std::uint64_t begin_ = 0;
  std::span<const std::byte> bytes_;  // in one of the buffers
  std::array<std::byte, kTailBytes> short_buffer_;
  std::vector<std::byte> long_buffer_;
};

// The place of the directory according to the end records.
struct Bounds {
  std::uint64_t count = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
  std::uint64_t end_offset = 0;
  std::uint64_t locator_offset = 0;
  std::optional<std::uint64_t> zip64_end_offset;
  bool is_on_one_disk = true;

  std::uint64_t limit() const { return zip64_end_offset.value_or(end_offset); }
};

// The end record nearest to the archive's end whose comment fits into the archive.
std::optional<std::uint64_t> find_end(const Tail& tail, std::uint64_t archive_bytes) {
  for (std::uint64_t offset = archive_bytes - kEndBytes;; --offset) {
    const std::byte* record = tail.at(offset);
    if (u32(record) == kEndSignature && u16(record + 20) <= archive_bytes - kEndBytes - offset) return offset;
    if (offset == tail.begin()) return std::nullopt;
  }
}

// A value of the old end record must equal the zip64 record's value, or be the placeholder for a value that does not
// fit.
bool agrees(std::uint64_t old_value, std::uint64_t placeholder, std::uint64_t value) {
  return old_value == placeholder || old_value == value;
}

// The numbers of this disk and of the disk with the directory; some writers count from 1.
bool is_one_disk(std::uint32_t disk, std::uint32_t disk_of_directory) { return disk == disk_of_directory && disk <= 1; }

Result<void> read_zip64_end(const Tail& tail, Bounds& bounds) {
  const std::uint64_t locator_offset = bounds.end_offset - kZip64LocatorBytes;
  std::array<std::byte, kZip64EndBytes> record;
  std::array<std::byte, kZip64LocatorBytes> locator;
  CAIRN_TRY(tail.copy(locator_offset, locator));
  if (u32(locator.data()) != kZip64LocatorSignature) return {};
  const std::uint64_t record_offset = u64(locator.data() + 8);
  if (!range_within(record_offset, kZip64EndBytes, locator_offset)) {
    return damaged("zip64 locator points outside the archive", locator_offset);
  }
  CAIRN_TRY(tail.copy(record_offset, record));
  if (u32(record.data()) != kZip64EndSignature)
    return damaged("no zip64 end record where its locator says", record_offset);
  const std::uint64_t count = u64(record.data() + 32);
  const std::uint64_t bytes = u64(record.data() + 40);
  const std::uint64_t offset = u64(record.data() + 48);
  if (u64(record.data() + 24) != count || !agrees(bounds.count, kSee64Short, count) ||
      !agrees(bounds.bytes, kSee64, bytes) || !agrees(bounds.offset, kSee64, offset)) {
    return damaged("the archive's end records contradict each other", record_offset);
  }
  bounds.count = count;
  bounds.bytes = bytes;
  bounds.offset = offset;
  bounds.locator_offset = locator_offset;
  bounds.zip64_end_offset = record_offset;
  const std::uint32_t disks = u32(locator.data() + 16);
  bounds.is_on_one_disk = disks == 1 && is_one_disk(u32(record.data() + 16), u32(record.data() + 20)) &&
                          u64(record.data() + 4) >= kZip64EndBytes - 12;
  return {};
}

// Reads a longer tail if the end record is not in the tail.
Result<std::optional<std::uint64_t>> find_end_in_file(Tail& tail, std::uint64_t archive_bytes) {
  std::optional<std::uint64_t> end = find_end(tail, archive_bytes);
  if (end || archive_bytes <= kTailBytes) return end;
  CAIRN_TRY(tail.read_long());
  return find_end(tail, archive_bytes);
}

Result<Bounds> read_bounds(Tail& tail, std::uint64_t archive_bytes) {
  CAIRN_TRY_ASSIGN(const std::optional<std::uint64_t> end, find_end_in_file(tail, archive_bytes));
  if (!end) return not_a_zip("no zip archive: it has no end record");
  std::array<std::byte, kEndBytes> record;
  CAIRN_TRY(tail.copy(*end, record));
  Bounds bounds;
  bounds.end_offset = *end;
  bounds.is_on_one_disk = is_one_disk(u16(record.data() + 4), u16(record.data() + 6));
  bounds.count = u16(record.data() + 10);
  bounds.bytes = u32(record.data() + 12);
  bounds.offset = u32(record.data() + 16);
  if (*end >= kZip64LocatorBytes) CAIRN_TRY(read_zip64_end(tail, bounds));
  if (!range_within(bounds.offset, bounds.bytes, bounds.limit())) {
    return damaged("zip directory outside the archive", *end)
        .expected("at most " + std::to_string(bounds.limit()) + " bytes")
        .actual(std::to_string(bounds.bytes) + " bytes from " + std::to_string(bounds.offset) + " on");
  }
  if (bounds.count > bounds.bytes / kDirectoryEntryBytes) {
    return damaged("zip directory too small for its entries", *end)
        .expected(std::to_string(bounds.count) + " entries")
        .actual(std::to_string(bounds.bytes) + " bytes");
  }
  return bounds;
}

// Replaces values that did not fit into 32 bits by the values of the zip64 field.
Result<void> read_zip64_field(std::span<const std::byte> extra, std::span<std::uint64_t* const> wanted,
                              std::uint64_t offset) {
  while (extra.size() >= 4) {
    const std::uint16_t id = u16(extra.data());
    const std::size_t length = u16(extra.data() + 2);
    extra = extra.subspan(4);
    if (length > extra.size()) break;
    if (id != kZip64FieldId) {
      extra = extra.subspan(length);
      continue;
    }
    if (length < wanted.size() * 8) break;
    for (std::size_t i = 0; i < wanted.size(); ++i) *wanted[i] = u64(extra.data() + 8 * i);
    return {};
  }
  return damaged("zip entry without the 64-bit sizes that it announces", offset);
}

// An entry of the directory; the name includes the prefix.
struct RawEntry {
  std::string_view name;
  DirectoryEntry entry;
  const char* torch_refusal = nullptr;
};

// For Directory::torch_refusal. `fixed`: the front of an entry.
const char* torch_refusal_of(const std::byte* fixed, std::uint16_t flags) {
  constexpr std::uint16_t kRefusedFlags = kEncryptedFlag | kPatchFlag | kStrongEncryptionFlag | kMaskedFlag;
  if ((flags & kRefusedFlags) != 0) return "torch.load refuses the flags of a zip record";
  if (u16(fixed + 34) > 1) return "torch.load refuses the disk number of a zip record";
  if ((u32(fixed + 38) & kFolderAttribute) != 0) return "torch.load takes a zip record for a folder, by the attributes";
  return nullptr;
}

// Reads the entry at the front of `bytes` and removes the entry from `bytes`.
Result<RawEntry> take_entry(std::span<const std::byte>& bytes, std::uint64_t offset) {
  if (bytes.size() < kDirectoryEntryBytes || u32(bytes.data()) != kDirectoryEntrySignature) {
    return damaged("no zip directory entry where one should be", offset);
  }
  const std::byte* fixed = bytes.data();
  const std::size_t name_bytes = u16(fixed + 28);
  const std::size_t extra_bytes = u16(fixed + 30);
  const std::size_t entry_bytes = kDirectoryEntryBytes + name_bytes + extra_bytes + u16(fixed + 32);
  if (entry_bytes > bytes.size()) return damaged("zip directory entry beyond the directory", offset);

  RawEntry raw;
  raw.name = {reinterpret_cast<const char*>(fixed) + kDirectoryEntryBytes, name_bytes};
  DirectoryEntry& entry = raw.entry;
  entry.flags = u16(fixed + 8);
  raw.torch_refusal = torch_refusal_of(fixed, entry.flags);
  entry.method = u16(fixed + 10);
  std::uint64_t stored_size = u32(fixed + 20);
  entry.size = u32(fixed + 24);
  entry.local_header_offset = u32(fixed + 42);
  entry.full_name_bytes = static_cast<std::uint16_t>(name_bytes);

  std::array<std::uint64_t*, 3> wanted;
  std::size_t wanted_count = 0;
  for (std::uint64_t* value : {&entry.size, &stored_size, &entry.local_header_offset}) {
    if (*value == kSee64) wanted[wanted_count++] = value;
  }
  if (wanted_count != 0) {
    CAIRN_TRY(read_zip64_field(bytes.subspan(kDirectoryEntryBytes + name_bytes, extra_bytes),
                               std::span(wanted).first(wanted_count), offset));
  }
  if (entry.method == 0 && stored_size != entry.size) return damaged("stored zip entry with two sizes", offset);
  const std::uint32_t crc = u32(fixed + 16);
  if (crc != 0 || entry.size == 0) entry.crc = crc;
  bytes = bytes.subspan(entry_bytes);
  return raw;
}

Result<std::string> prefix_of(std::string_view first_name) {
  const std::size_t slash = first_name.find('/');
  if (slash == std::string_view::npos)
    return not_a_zip("a zip archive, but not one of torch: its records have no prefix");
  return std::string(first_name.substr(0, slash + 1));
}

Result<void> parse_entries(std::span<const std::byte> bytes, std::uint64_t count, Directory& directory) {
  const std::size_t total = bytes.size();
  directory.entries.reserve(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t offset = directory.offset + (total - bytes.size());
    CAIRN_TRY_ASSIGN(RawEntry raw, take_entry(bytes, offset));
    if (i == 0) {
      CAIRN_TRY_ASSIGN(directory.prefix, prefix_of(raw.name));
    }
    // torch's reader prepends the prefix to every name. Records outside the prefix have no name for torch, and recent
    // versions refuse the archive.
    const bool is_inside = raw.name.substr(0, directory.prefix.size()) == directory.prefix;
    if (!is_inside) raw.torch_refusal = "torch.load refuses a zip record whose name lacks the prefix of the archive";
    if (raw.torch_refusal != nullptr && !directory.torch_refusal) {
      directory.torch_refusal = damaged(raw.torch_refusal, offset).actual(raw.name);
    }
    if (!is_inside) continue;
    DirectoryEntry& entry = raw.entry;
    const std::uint64_t header_bytes = kLocalHeaderBytes + entry.full_name_bytes;
    const bool room =
        entry.local_header_offset <= directory.offset && directory.offset - entry.local_header_offset >= header_bytes;
    if (!room || (entry.method == 0 && entry.size > directory.offset - entry.local_header_offset - header_bytes)) {
      return damaged("zip record beyond the archive", offset)
          .expected("an end before " + std::to_string(directory.offset))
          .actual(std::to_string(entry.size) + " bytes from " + std::to_string(entry.local_header_offset) + " on");
    }
    entry.name.assign(raw.name.substr(directory.prefix.size()));
    directory.entries.push_back(std::move(entry));
  }
  if (!bytes.empty()) return damaged("bytes left over in the zip directory", directory.offset + total - bytes.size());
  return {};
}

// Sets end_max of each entry. Records must not share bytes: a small archive could otherwise expand to a large one.
Result<void> check_apart(Directory& directory) {
  std::vector<DirectoryEntry*> entries;
  entries.reserve(directory.entries.size());
  for (DirectoryEntry& entry : directory.entries) entries.push_back(&entry);
  const auto lies_before = [](const DirectoryEntry* a, const DirectoryEntry* b) {
    return a->local_header_offset < b->local_header_offset;
  };
  if (!std::is_sorted(entries.begin(), entries.end(), lies_before)) {
    std::sort(entries.begin(), entries.end(), lies_before);
  }
  for (std::size_t i = 0; i < entries.size(); ++i) {
    DirectoryEntry& entry = *entries[i];
    entry.end_max = i + 1 < entries.size() ? entries[i + 1]->local_header_offset : directory.offset;
    const std::uint64_t header_bytes = kLocalHeaderBytes + entry.full_name_bytes;
    // Compressed entries are refused by payload_offset().
    const std::uint64_t stored = entry.method == 0 ? entry.size : 0;
    if (!range_within(header_bytes, stored, entry.end_max - entry.local_header_offset)) {
      return damaged("two zip records that share bytes", entry.local_header_offset)
          .expected("an end of '" + entry.name + "' at or before " + std::to_string(entry.end_max))
          .actual(std::to_string(entry.local_header_offset + header_bytes + stored));
    }
  }
  return {};
}

}  // namespace

Result<void> Directory::index() {
  const auto less = [&](std::uint32_t a, std::uint32_t b) { return entries[a].name < entries[b].name; };
  const auto same = [&](std::uint32_t a, std::uint32_t b) { return entries[a].name == entries[b].name; };
  if (entries.size() <= kLinearEntriesMax) {
    for (std::uint32_t i = 1; i < entries.size(); ++i) {
      for (std::uint32_t j = 0; j < i; ++j) {
        if (same(i, j)) return damaged("two zip records of one name", offset).actual(entries[i].name);
      }
    }
    return {};
  }
  by_name_.resize(entries.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), less);
  const auto twin = std::adjacent_find(by_name_.begin(), by_name_.end(), same);
  if (twin != by_name_.end()) return damaged("two zip records of one name", offset).actual(entries[*twin].name);
  return {};
}

const DirectoryEntry* Directory::find(std::string_view name) const {
  if (by_name_.empty()) {
    const auto found =
        std::find_if(entries.begin(), entries.end(), [&](const auto& entry) { return entry.name == name; });
    return found == entries.end() ? nullptr : &*found;
  }
  const auto less = [&](std::uint32_t index, std::string_view wanted) { return entries[index].name < wanted; };
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name, less);
  return found == by_name_.end() || entries[*found].name != name ? nullptr : &entries[*found];
}

Result<bool> has_end_record(const ByteSource& archive) {
  if (archive.size() < kEndBytes) return false;
  Tail tail(archive);
  CAIRN_TRY(tail.read());
  CAIRN_TRY_ASSIGN(const std::optional<std::uint64_t> end, find_end_in_file(tail, archive.size()));
  return end.has_value();
}

Result<Directory> read_directory(const ByteSource& archive) {
  if (archive.size() < kEndBytes)
    return not_a_zip("no zip archive: too short").actual(std::to_string(archive.size()) + " bytes");
  Tail tail(archive);
  CAIRN_TRY(tail.read());
  CAIRN_TRY_ASSIGN(const Bounds bounds, read_bounds(tail, archive.size()));
  if (bounds.bytes > kDirectoryBytesMax) {
    return Error(ErrorCode::kUnsupported, "zip directory larger than we read")
        .expected(std::to_string(kDirectoryBytesMax) + " bytes")
        .actual(std::to_string(bounds.bytes) + " bytes");
  }
  Directory directory;
  directory.offset = bounds.offset;
  directory.bytes = bounds.bytes;
  directory.end_offset = bounds.end_offset;
  directory.zip64_end_offset = bounds.zip64_end_offset;
  directory.zip64_locator_offset = bounds.locator_offset;
  if (!bounds.is_on_one_disk) {
    directory.torch_refusal = damaged("torch.load refuses the end record of the zip archive", bounds.limit());
  }
  if (tail.holds(bounds.offset)) {
    CAIRN_TRY(parse_entries({tail.at(bounds.offset), bounds.bytes}, bounds.count, directory));
  } else {
    std::vector<std::byte> bytes(bounds.bytes);
    CAIRN_TRY(archive.read_at(bounds.offset, bytes));
    CAIRN_TRY(parse_entries(bytes, bounds.count, directory));
  }
  CAIRN_TRY(check_apart(directory));
  CAIRN_TRY(directory.index());
  return directory;
}

Result<std::uint64_t> payload_offset(const ByteSource& archive, const DirectoryEntry& entry) {
  const std::uint64_t offset = entry.local_header_offset;
  if (entry.method != 0 || (entry.flags & kEncryptedFlag) != 0) {
    return Error(ErrorCode::kUnsupported, "zip record is compressed or encrypted").offset(offset).actual(entry.name);
  }
  std::array<std::byte, 512> buffer;
  const std::uint64_t wanted = kLocalHeaderBytes + entry.full_name_bytes;
  // A name longer than the buffer is not compared; neither torch nor Cairn writes such a name.
  const std::span<std::byte> header = std::span(buffer).first(std::min<std::uint64_t>(wanted, buffer.size()));
  CAIRN_TRY(archive.read_at(offset, header));
  if (u32(header.data()) != kLocalHeaderSignature) {
    return damaged("no zip local header where the directory says", offset).actual(entry.name);
  }
  const std::uint64_t name_bytes = u16(header.data() + 26);
  const std::string_view name(reinterpret_cast<const char*>(header.data()) + kLocalHeaderBytes,
                              header.size() - kLocalHeaderBytes);
  const bool named_so = header.size() < wanted || name.substr(name.size() - entry.name.size()) == entry.name;
  if (name_bytes != entry.full_name_bytes || !named_so) {
    return damaged("zip local header of another record", offset).expected(entry.name);
  }
  const std::uint32_t local_size = u32(header.data() + 22);
  const bool sized_here = (u16(header.data() + 6) & kDescriptorFlag) == 0 && local_size != kSee64;
  if (u16(header.data() + 8) != 0 || (sized_here && local_size != entry.size)) {
    return damaged("zip local header contradicts the directory", offset).actual(entry.name);
  }
  const std::uint64_t payload = offset + wanted + u16(header.data() + 28);
  if (!range_within(payload, entry.size, entry.end_max)) {
    return damaged("a zip record that reaches into the next one, or beyond the archive", offset).actual(entry.name);
  }
  return payload;
}

}  // namespace cairn::zip
