// missing_keys: the error about keys that a checkpoint lacks.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>

#include <string>
#include <vector>

namespace cairn::checkpointer {

// kMissingKey. The text names the first keys of `missing`, which is not empty, with the nearest keys of the checkpoint,
// and counts the rest. If all missing keys differ from keys of the checkpoint by one prefix ("module."), the text names
// the prefix. The text begins with torch's words and the first key, because callers of DCP match both.
Error missing_keys(const Catalog& catalog, const std::vector<std::string>& missing);

}  // namespace cairn::checkpointer
