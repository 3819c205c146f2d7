// Consumed records: whether a conversion has copied every stored byte of a file of torch.save.
#pragma once

#include <cairn/result.h>

#include <string>
#include <vector>

#include "checkpointer/convert_job.h"

namespace cairn::checkpointer {

// After the last read of the source. A storage counts as copied if a key of the plan names it and its bytes were read
// (all bytes, if anything but a plain tensor names it), and as left out by the selection if other keys name it.
// kUnsafe, with record and key, for a storage that a key of the plan names and the target lacks, such as an attribute
// of a tensor. kCorrupt, with the record, for a storage that no key names, and for a record that torch.save does not
// write.
//
// Returns the storages with bytes that no tensor shows, in words. Nothing for a source of any other format.
Result<std::vector<std::string>> check_consumed(const ConvertInput& input);

}  // namespace cairn::checkpointer
