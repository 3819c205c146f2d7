// The speed of the `.metadata` codec.
//
//   bench_metadata FILE OUTPUT      reads FILE, writes an equal graph to OUTPUT, prints seconds as JSON
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

cairn::Result<void> measure(const std::string& input, const std::string& output) {
  std::ifstream file(input, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  auto start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const auto decoded, cairn::dcp::decode_metadata(std::as_bytes(std::span(bytes))));
  const double read = seconds_since(start);

  const cairn::Catalog& catalog = decoded.catalog;
  start = std::chrono::steady_clock::now();
  CAIRN_TRY_ASSIGN(const auto metadata, cairn::dcp::MetadataTemplate::make(catalog));
  const std::string pickle =
      metadata.render(catalog.save_id.value_or(""), catalog.checkpoint_id.value_or(""), catalog.files);
  const double write = seconds_since(start);
  std::ofstream(output, std::ios::binary) << pickle;
  std::printf("{\"read\": %.6f, \"write\": %.6f}\n", read, write);
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) return std::fprintf(stderr, "usage: %s FILE OUTPUT\n", words[0]), 2;
  const cairn::Result<void> measured = measure(words[1], words[2]);
  if (!measured) std::fprintf(stderr, "%s\n", measured.error().what());
  return measured ? 0 : 1;
}
