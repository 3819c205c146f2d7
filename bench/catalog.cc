// The cost of the compact catalog of `.metadata`: to make it, and to open and plan a rank's load by it.
//
//   bench_catalog write SHAPE RANKS KEYS DIRECTORY    writes `.metadata`, with the catalog
//   bench_catalog load SHAPE RANKS KEYS DIRECTORY     opens it and plans the load of one rank, by the catalog
//   bench_catalog pickle SHAPE RANKS KEYS DIRECTORY   the same by the pickle
//
// SHAPE is `shards` (KEYS keys, each with an equal shard on each rank), `ragged` (with shards of different sizes, at
// different offsets of the ranks' files), `own` (each rank has KEYS keys of its own), or `own-filler` (as own, with
// filler in place of the pickle, which would need many gigabytes). A load without reads: the keys' chunks are found and
// the reads planned; no data file is opened. Prints seconds of processor time, MiB and bytes as JSON.
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/open_calls.h"
#include "checkpoint/wanted_entries.h"
#include "core/checksum.h"
#include "format/compact_catalog/writer.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/commit_record.h"
#include "plan/chunk_index.h"
#include "storage/open_directory.h"

namespace {

using cairn::Box;
using cairn::Catalog;
using cairn::CatalogTensor;
using cairn::Extents;
using cairn::Result;

constexpr std::int64_t kRows = 8;
constexpr std::int64_t kColumns = 1024;
constexpr std::uint64_t kItemBytes = kRows * kColumns * 4 + 1200;

struct Form {
  std::string shape;
  std::uint32_t ranks;
  int keys;

  bool is_own() const { return shape.starts_with("own"); }
  // Rows of a shard, at most kRows: by rank, of a few different sizes.
  std::int64_t rows(std::uint32_t rank, int key) const {
    return shape == "ragged" ? 1 + (rank * 7919 + static_cast<std::uint32_t>(key) * 31) % kRows : kRows;
  }
};

std::string key_name(const Form& form, std::uint32_t rank, int key) {
  const std::string name = "model.layers." + std::to_string(key / 9) + ".block." + std::to_string(key % 9) + ".weight";
  return form.is_own() ? "rank" + std::to_string(rank) + "." + name : name;
}

CatalogTensor own_tensor(const Form& form, std::uint32_t rank, int key) {
  CatalogTensor tensor;
  tensor.fqn = key_name(form, rank, key);
  tensor.shape = {kRows, kColumns};
  tensor.boxes = {0, 0, kRows, kColumns};
  tensor.locations = {{rank, static_cast<std::uint64_t>(key) * kItemBytes, kItemBytes}};
  return tensor;
}

CatalogTensor sharded_tensor(const Form& form, int key, std::vector<std::uint64_t>& ends) {
  CatalogTensor tensor;
  tensor.fqn = key_name(form, 0, key);
  std::int64_t row = 0;
  for (std::uint32_t rank = 0; rank < form.ranks; ++rank) {
    const std::int64_t rows = form.rows(rank, key);
    tensor.boxes.insert(tensor.boxes.end(), {row, 0, rows, kColumns});
    const std::uint64_t length = static_cast<std::uint64_t>(rows) * kColumns * 4 + 1200;
    tensor.locations.push_back({rank, ends[rank], length});
    ends[rank] += length;
    row += rows;
  }
  tensor.shape = {row, kColumns};
  return tensor;
}

std::vector<std::string> files_of(const Form& form) {
  std::vector<std::string> files;
  for (std::uint32_t rank = 0; rank < form.ranks; ++rank) files.push_back("__" + std::to_string(rank) + "_0.distcp");
  return files;
}

Catalog catalog_of(const Form& form) {
  Catalog catalog;
  catalog.files = files_of(form);
  if (form.is_own()) {
    for (std::uint32_t rank = 0; rank < form.ranks; ++rank) {
      for (int key = 0; key < form.keys; ++key) catalog.tensors.push_back(own_tensor(form, rank, key));
    }
  } else {
    std::vector<std::uint64_t> ends(form.ranks);
    for (int key = 0; key < form.keys; ++key) catalog.tensors.push_back(sharded_tensor(form, key, ends));
  }
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) catalog.keys.push_back({true, i});
  return catalog;
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

double peak_mib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void write_file(const std::filesystem::path& directory, const Form& form, std::string front) {
  cairn::manifest::CommitRecord record;
  record.save_id = {1, 2};
  for (const std::string& name : files_of(form)) record.files.push_back({name, 1 << 20, 0});
  record.front_bytes = front.size();
  record.front_checksum = cairn::crc32(std::as_bytes(std::span(front)));
  std::ofstream file(directory / ".metadata", std::ios::binary);
  file << front << cairn::manifest::encode_commit_record(record);
}

Result<void> write(const Form& form, const std::filesystem::path& directory) {
  std::filesystem::create_directories(directory);
  if (form.shape == "own-filler") {
    constexpr std::size_t kFillerBytes = std::size_t{1} << 30;
    const double start = processor_seconds();
    cairn::compact_catalog::CompactCatalogWriter writer;
    for (std::uint32_t rank = 0; rank < form.ranks; ++rank) {
      for (int key = 0; key < form.keys; ++key) writer.add(own_tensor(form, rank, key));
    }
    const cairn::compact_catalog::CatalogBody body = std::move(writer).finish(form.ranks);
    const double seconds = processor_seconds() - start;
    const double peak = peak_mib();
    std::string front;
    front.reserve(kFillerBytes + cairn::compact_catalog::catalog_bytes(body));
    front.resize(kFillerBytes);
    cairn::compact_catalog::append_catalog(front, body);
    write_file(directory, form, std::move(front));
    std::printf("{\"catalog_seconds\": %.3f, \"catalog_bytes\": %zu, \"peak_mib\": %.0f}\n", seconds, body.bytes.size(),
                peak);
    return {};
  }
  const Catalog catalog = catalog_of(form);
  const double begin = processor_seconds();
  const auto body = cairn::compact_catalog::compact(catalog);
  const double made = processor_seconds();
  CAIRN_TRY_ASSIGN(const auto metadata, cairn::dcp::MetadataTemplate::make(catalog));
  std::string front = metadata.render("save", "checkpoint", catalog.files);
  const double rendered = processor_seconds();
  std::printf("{\"catalog_seconds\": %.3f, \"catalog_bytes\": %zu, \"all_seconds\": %.3f, \"all_bytes\": %zu}\n",
              made - begin, body.bytes.size(), rendered - made, front.size());
  write_file(directory, form, std::move(front));
  return {};
}

Result<void> load(const Form& form, const std::filesystem::path& directory, cairn::checkpointer::Decoding decoding) {
  const std::uint32_t rank = form.ranks / 3;
  cairn::StateDict state;
  float memory = 0;
  const double start = processor_seconds();
  CAIRN_TRY_ASSIGN(auto storage, cairn::storage::open_directory(directory));
  CAIRN_TRY_ASSIGN(const cairn::Checkpoint checkpoint,
                   cairn::checkpointer::open_in(std::move(storage), ".metadata", decoding));
  const double opened = processor_seconds();
  for (int key = 0; key < form.keys; ++key) {
    std::int64_t row = 0;
    std::int64_t end = form.rows(0, key);
    for (std::uint32_t i = 0; i < form.ranks && !form.is_own(); ++i) {
      end = row + form.rows(i, key);
      if (i == rank) break;
      row = end;
    }
    std::int64_t all = kRows;
    for (std::uint32_t i = 0; i < form.ranks && !form.is_own(); ++i) all = (i == 0 ? 0 : all) + form.rows(i, key);
    const auto view = cairn::TensorView::contiguous(&memory, cairn::DType::kFloat32, {end - row, kColumns});
    CAIRN_TRY(state.add_chunk(key_name(form, rank, key), view, {all, kColumns}, {row, 0}));
  }
  const double stated = processor_seconds();
  CAIRN_TRY_ASSIGN(const auto entries,
                   cairn::checkpointer::WantedEntries::of(checkpoint.impl(), state.entries(), false));
  std::size_t reads = 0;
  for (const cairn::Entry& entry : state.entries()) {
    const CatalogTensor* tensor = entries.tensor(entry.fqn);
    if (tensor == nullptr) return cairn::Error(cairn::ErrorCode::kMissingKey, "no such key").key(entry.fqn);
    const auto& target = std::get<cairn::TensorEntry>(entry.content);
    CAIRN_TRY_ASSIGN(const auto items, cairn::plan::ChunkIndex(*tensor).reads_for(target.box));
    reads += items.size();
  }
  const double planned = processor_seconds();
  std::printf("{\"open_seconds\": %.3f, \"plan_seconds\": %.3f, \"peak_mib\": %.0f, \"reads\": %zu}\n", opened - start,
              planned - stated, peak_mib(), reads);
  if (checkpoint.damage()) std::printf("%s\n", checkpoint.damage()->c_str());
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count != 6) {
    return std::fprintf(stderr, "usage: %s write|load|pickle shards|ragged|own|own-filler RANKS KEYS DIRECTORY\n",
                        words[0]),
           2;
  }
  const std::string_view task = words[1];
  const Form form{words[2], static_cast<std::uint32_t>(std::atoi(words[3])), std::atoi(words[4])};
  using cairn::checkpointer::Decoding;
  const Result<void> done = task == "write"
                                ? write(form, words[5])
                                : load(form, words[5], task == "load" ? Decoding::kWanted : Decoding::kWhole);
  if (!done) std::fprintf(stderr, "%s\n", done.error().what());
  return done ? 0 : 1;
}
