// MetadataTemplate: the pickle of `.metadata` for a catalog, with slots for what differs from save to save.
//
// Immutable: safe to render from several threads. What it renders is a Metadata object of stock torch's classes
// (protocol 4), each name of a key or file written once and referred to afterwards.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/manifest/varint.h"

namespace cairn::dcp {

// The version that torch 2.13 writes into `.metadata`.
inline constexpr std::string_view kMetadataVersion = "1.0.0";

class MetadataTemplate {
 public:
  // Chunks whose location has no length are written without an item. The catalog's file names, save id and checkpoint
  // id do not matter here; the numbers of its files do. Fails with kUnsupported if something in `extra` cannot be
  // pickled.
  static Result<MetadataTemplate> make(const Catalog& catalog);

  // `files` are the names of the catalog's files, in its order; `save_id` a UUID in text: uuid_text().
  std::string render(std::string_view save_id, std::string_view checkpoint_id,
                     std::span<const std::string> files) const;

  std::size_t file_count() const noexcept { return file_count_; }

  // For a message to whoever renders it elsewhere. What was not appended by append_to() fails with kCorrupt.
  void append_to(std::string& out) const;
  static Result<MetadataTemplate> read(manifest::CodedReader& reader);

 private:
  friend class MetadataWriter;
  struct Slot {
    enum class Kind : std::uint8_t { kSaveId, kCheckpointId, kFile };
    std::size_t place = 0;  // in opcodes_: the text goes before that byte
    Kind kind = Kind::kFile;
    std::uint32_t file = 0;
  };
  MetadataTemplate() = default;

  std::string opcodes_;
  std::vector<Slot> slots_;  // by place
  std::size_t file_count_ = 0;
};

}  // namespace cairn::dcp
