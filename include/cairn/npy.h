// export_npy: a tensor of a checkpoint as a file of NumPy's format .npy.
#pragma once

#include <cairn/result.h>
#include <cairn/tensor_pass.h>

#include <filesystem>
#include <string_view>

namespace cairn {

// Writes the tensor under `key` of the checkpoint `directory`, of any format, to `file`. The file gets its name by a
// rename when all bytes are written and synced; a kill may leave a hidden file `.NAME.*.partial` beside `file`. An
// existing file is kInvalidArgument unless `overwrite`, which replaces the file; a file of the checkpoint itself is
// always kInvalidArgument. Reads the tensor once, verified, with bounded memory. NumPy has no dtype for bfloat16 and
// float8: their elements become float32, which holds each of their numbers exactly; complex32 becomes complex64.
// kUnsupported for float4, bits and quantised dtypes; kMissingKey if the checkpoint has no such tensor; kUnsafe for a
// tensor of a torch.save file that repeats few elements very often.
Result<void> export_npy(const std::filesystem::path& directory, std::string_view key, const std::filesystem::path& file,
                        const TensorPassOptions& options = {}, bool overwrite = false);

}  // namespace cairn
