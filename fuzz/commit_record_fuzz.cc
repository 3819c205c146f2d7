// Reads any bytes as a `.metadata` file with a commit record. Because checksums would refuse nearly every input, also
// reads the bytes as the body of a record with a true footer. An accepted record must encode to a record that reads
// equal.
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

namespace {

constexpr std::size_t kFooterBytes = 40;

void read(std::span<const std::byte> file) {
  const auto record = [&] {
    const cairn::fuzz::DecodingBounds bounds(file.size());
    return cairn::manifest::read_commit_record(file);
  }();
  if (!record || !*record) return;
  if ((*record)->front_bytes > file.size()) std::abort();
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
  if (bytes.empty()) return 0;
  for (const std::uint32_t version : {1u, 2u, 3u}) read_with_true_footer(bytes, version);
  return 0;
}
