// consolidate: writes a safetensors model of whole tensors from a model, or from the shards that many ranks have saved.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/result.h>

#include <filesystem>

namespace cairn {

// Reads the model in `input` and saves its tensors as the model in `output`, a different directory, in the files that
// `options.safetensors->file_numbers` names (one file if empty), with an index. Streams: memory for a few buffers of
// 4 MiB. Checks every byte that has a checksum. The old model in `output` stays in place until the new model is whole.
//
// With `options.collectives` each rank writes some of the files. Of `options`, consolidate() uses safetensors,
// overwrite, durability, deadlines, thread_count, direct_io, interrupted, collectives and coordinator_rank.
//
// kInvalidArgument if a tensor has no file number, or if `input` is `output`; kMissingKey if a tensor of the mapping is
// not in the model.
Result<SaveReport> consolidate(const std::filesystem::path& input, const std::filesystem::path& output,
                               const SaveOptions& options);

}  // namespace cairn
