// WantedEntries: the catalog's entries for the keys of a load, wherever they come from: from the whole catalog of a
// checkpoint, or, decoded for this load alone, from the compact catalog of its `.metadata`.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/stored_names.h"
#include "format/compact_catalog/reader.h"

namespace cairn::checkpointer {

class WantedEntries {
 public:
  // The entries of the keys of `state`, whose names are those of `names`. Of a tensor that the load fills, the chunks
  // that overlap the target may be all.
  // `with_missing_keys`: a key that the checkpoint lacks is no reason to decode the whole catalog.
  //
  // Damage of the compact catalog is noted in `impl`, and the whole catalog takes its place. kReplaced if a save has
  // replaced the checkpoint meanwhile.
  static Result<WantedEntries> of(Checkpoint::Impl& impl, std::span<const Entry> state, const StoredNames& names,
                                  bool with_missing_keys);
  // The entry of a key, with all chunks.
  static Result<WantedEntries> of_key(Checkpoint::Impl& impl, std::string_view fqn);
  // The entries of those of the keys that the checkpoint has, without chunks.
  static Result<WantedEntries> of_keys(Checkpoint::Impl& impl, std::span<const std::string> fqns);

  // Null if the checkpoint has no such tensor, or value. Valid as long as this object and the checkpoint.
  const CatalogTensor* tensor(std::string_view fqn) const { return catalog_->find_tensor(fqn); }
  const CatalogValue* value(std::string_view fqn) const { return catalog_->find_value(fqn); }

 private:
  explicit WantedEntries(const Catalog* catalog) : catalog_(catalog) {}
  explicit WantedEntries(std::shared_ptr<const Catalog> decoded)
      : decoded_(std::move(decoded)), catalog_(decoded_.get()) {}
  static Result<WantedEntries> find(Checkpoint::Impl& impl, std::span<const compact_catalog::WantedKey> keys,
                                    bool with_missing_keys);

  std::shared_ptr<const Catalog> decoded_;  // shared with Checkpoint::Impl, which keeps the entry of the last key
  const Catalog* catalog_;
};

}  // namespace cairn::checkpointer
