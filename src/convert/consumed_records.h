// Consumed records: whether a conversion has copied every stored byte of a file of torch.save.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <string>
#include <unordered_set>
#include <vector>

#include "convert/convert_job.h"

namespace cairn::checkpointer {

// After the last read of the source. A storage counts as copied if a key of the plan names it and its bytes were read
// (all bytes, if anything but a plain tensor names it), and as left out by the selection if other keys name it.
// kUnsafe, with record and key, for a storage that a key of the plan names and the target lacks, and for a storage that
// only attributes name which the target lacks: of a tensor, or of a dict of which the target has keys. kCorrupt, with
// the record, for a storage that nothing names, and for a record that torch.save does not write.
//
// Returns the storages with bytes that no tensor shows, or that only attributes name and the caller has left out, in
// words. Nothing for a source of any other format. `as_saved`: ConvertJob::as_saved.
Result<std::vector<std::string>> check_consumed(const ConvertInput& input,
                                                const std::unordered_set<std::size_t>& as_saved);

}  // namespace cairn::checkpointer
