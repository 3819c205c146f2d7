// RebuiltCatalog: the catalog of a save, from the trailers of its data files.
#pragma once

#include <cairn/catalog.h>
#include <cairn/repair.h>
#include <cairn/result.h>

#include <functional>
#include <string>
#include <vector>

#include "repair/found_saves.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

struct RebuiltCatalog {
  Catalog catalog;  // the files in the order of SaveFiles::files
  std::vector<std::string> warnings;
};

// Opens each file of `save` again: kReplaced if its trailer has changed. kCorrupt if two items contradict each other: a
// key is a tensor and a value, a tensor has two dtypes or shapes, or two chunks have elements in common. Of an item
// that several files have, as planners other than Cairn's write, the first file's counts, with a warning.
Result<RebuiltCatalog> rebuild_catalog(const storage::Storage& storage, const SaveFiles& save,
                                       const std::function<bool()>& interrupted);

// The tensors of which elements are in no chunk; at most `count_max`.
std::vector<LostElements> find_lost_elements(const Catalog& catalog, std::size_t count_max);

}  // namespace cairn::checkpointer
