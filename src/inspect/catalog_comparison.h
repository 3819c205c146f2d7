// The comparison of the two forms of the metadata in `.metadata`: the pickle and the compact catalog.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <cstddef>
#include <string>
#include <vector>

#include "checkpoint/lazy_metadata.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// The damage of the compact catalog, and its differences from `pickle`, the catalog of the pickle; at most
// `problems_max`. Empty for a file without a compact catalog. The file is read again.
std::vector<Error> compare_catalogs(const storage::Storage& storage, const std::string& metadata_name,
                                    const Catalog& pickle, std::size_t problems_max);

}  // namespace cairn::checkpointer
