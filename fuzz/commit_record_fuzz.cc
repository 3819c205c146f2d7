// Reads any bytes as a `.metadata` file with a commit record. Because checksums would refuse nearly every input, also
// reads the bytes as the body of a record with a true footer, and as notes with a true footer. An accepted record must
// encode to a record that reads equal, and accepted notes to notes that read equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "core/checksum.h"
#include "core/little_endian.h"
#include "decoding_bounds.h"
#include "format/manifest/commit_record.h"
#include "format/manifest/notes.h"

namespace commit_record_fuzz {

namespace {

constexpr std::size_t kFooterBytes = 40;

// The notes at the end of `front`.
void read_notes(std::span<const std::byte> front) {
  const cairn::fuzz::DecodingBounds bounds(front.size());
  const cairn::MemorySource source(front);
  const auto place = cairn::manifest::find_notes(source, front.size());
  if (!place) return;
  if (place->section_bytes > front.size()) std::abort();
  const auto notes = cairn::manifest::read_notes(source, *place);
  if (!notes || notes->empty()) return;
  if (!cairn::manifest::check_notes(*notes) || !cairn::manifest::metrics_in(*notes)) std::abort();
  const std::string again = cairn::manifest::encode_notes(*notes);
  if (std::memcmp(again.data(), front.last(again.size()).data(), again.size()) != 0) std::abort();
}

void read(std::span<const std::byte> file) {
  const auto record = [&] {
    const cairn::fuzz::DecodingBounds bounds(file.size());
    return cairn::manifest::read_commit_record(file);
  }();
  if (!record || !*record) return;
  if ((*record)->front_bytes > file.size()) std::abort();
  read_notes(file.first((*record)->front_bytes));
  std::string again(reinterpret_cast<const char*>(file.data()), (*record)->front_bytes);
  again += cairn::manifest::encode_commit_record(**record);
  const auto reread = cairn::manifest::read_commit_record(std::as_bytes(std::span(again)));
  if (!reread || *reread != *record) std::abort();
}

void read_with_true_footer(std::span<const std::byte> body, std::uint32_t version) {
  std::vector<std::byte> file(body.size() + kFooterBytes);
  std::memcpy(file.data(), body.data(), body.size());
  const std::span<std::byte> footer = std::span(file).last(kFooterBytes);
  std::byte* to = cairn::store_little_endian(footer.data() + 4, cairn::crc32(body));
  cairn::store_little_endian(to, std::uint64_t{body.size()});
  cairn::store_little_endian(footer.data() + 28, version);
  std::memcpy(footer.data() + 32, "CAIRNCMT", 8);
  cairn::store_little_endian(footer.data(), cairn::crc32(footer.subspan(4)));
  read(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  read(bytes);
  read_notes(bytes);
  if (bytes.empty()) return 0;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string section = cairn::manifest::encode_notes(text);
  read_notes(std::as_bytes(std::span(section)));
  for (const std::uint32_t version : {1u, 2u, 3u}) read_with_true_footer(bytes, version);
  return 0;
}

}  // namespace commit_record_fuzz
