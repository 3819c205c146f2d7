// MetadataTemplate: the pickle of `.metadata` for a catalog, with slots for the texts that differ from save to save,
// and the compact catalog, which has no such texts.
//
// Immutable: safe to render from several threads. The rendered pickle (protocol 4) is a Metadata object of stock
// torch's classes. Each name of a key or file is written once and referred to afterwards.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/compact_catalog/writer.h"
#include "format/manifest/varint.h"

namespace cairn::dcp {

// The value of `Metadata.version` in torch 2.13.
inline constexpr std::string_view kMetadataVersion = "1.0.0";

class MetadataTemplate {
 public:
  // With a compact catalog (format/compact_catalog) for at least `compact_items_min` chunks and values. The numbers of
  // the catalog's files are then places in the save's commit record.
  //
  // Chunks whose location has length 0 are written without an item. The template depends on the numbers of the
  // catalog's files, but not on the file names, the save id or the checkpoint id. Fails with kUnsupported if a value in
  // `extra` cannot be pickled.
  static Result<MetadataTemplate> make(const Catalog& catalog,
                                       std::uint64_t compact_items_min = compact_catalog::kItemsMin);

  // The bytes of `.metadata` before the commit record: the pickle, and the compact catalog if there is one. `files` are
  // the names of the catalog's files, in the catalog's order. `save_id` is a UUID as text: uuid_text().
  std::string render(std::string_view save_id, std::string_view checkpoint_id,
                     std::span<const std::string> files) const;

  std::size_t file_count() const noexcept { return file_count_; }
  // Of a pickle of the same catalog, the template's or another: whether `bytes`, which follow that pickle, are the
  // template's compact catalog. No bytes if the template has none.
  bool is_compact_catalog(std::string_view bytes, const compact_catalog::PickleIdentity& pickle) const {
    return compact_catalog::is_catalog_of(bytes, pickle, compact_);
  }

  // Encodes the template for a process that renders the pickle elsewhere. read() fails with kCorrupt for bytes that
  // append_to() cannot have written.
  void append_to(std::string& out) const;
  static Result<MetadataTemplate> read(manifest::CodedReader& reader);

 private:
  friend class MetadataWriter;
  struct Slot {
    enum class Kind : std::uint8_t { kSaveId, kCheckpointId, kFile };
    std::size_t place = 0;  // offset in opcodes_: the slot's text goes before the byte at this offset
    Kind kind = Kind::kFile;
    std::uint32_t file = 0;
  };
  MetadataTemplate() = default;

  std::string opcodes_;
  std::vector<Slot> slots_;  // ascending by place
  std::size_t file_count_ = 0;
  compact_catalog::CatalogBody compact_;
};

}  // namespace cairn::dcp
