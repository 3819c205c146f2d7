// Whether torch.load opens an archive of torch.save: what torch's reader demands beyond the bytes of the records.
#pragma once

#include <cairn/result.h>

#include "core/byte_source.h"

namespace cairn::torch_file {

// kCorrupt if torch.load refuses the archive for its end records, its directory, or one of its small records: the
// version, the byte order and the alignment of the storages. Passes over a file that is no archive of torch.save.
// Compares no storage with its checksum.
Result<void> check_torch_opens(const ByteSource& archive);

}  // namespace cairn::torch_file
