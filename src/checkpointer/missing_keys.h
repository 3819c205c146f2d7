// missing_keys: the error about keys that a checkpoint lacks.
#pragma once

#include <cairn/catalog.h>
#include <cairn/error.h>

#include <string>
#include <vector>

namespace cairn::checkpointer {

// kMissingKey. It names the first of `missing`, which is not empty, with the nearest keys of the checkpoint, and counts
// the rest. Where all missing keys are keys of the checkpoint but for one prefix ("module."), it says so. The text
// begins with torch's words, and the first key follows them, because callers of DCP match both.
Error missing_keys(const Catalog& catalog, const std::vector<std::string>& missing);

}  // namespace cairn::checkpointer
