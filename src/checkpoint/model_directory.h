// model_directory: which files of a directory make up its safetensors model.
//
// By `model.safetensors.index.json`. Without it `model.safetensors` is the model, as to transformers: other names are
// left out, except for names of a model's files. Without both, an index of another name decides
// (`diffusion_pytorch_model.safetensors.index.json`, or with a variant, `model.safetensors.index.fp16.json`). Otherwise
// all files `*.safetensors` are the model.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/safetensors/index.h"
#include "storage/storage.h"

namespace cairn::checkpointer::model_directory {

// The names of the model's files, sorted, and the index if one names them.
struct ModelFiles {
  std::vector<std::string> names;
  std::optional<safetensors::Index> index;
  std::string index_name;  // empty without an index
};

// kCorrupt for a damaged index, and for several indexes of other names: nothing shows which is the model's. kUnsafe for
// an index that names a file outside the directory.
Result<ModelFiles> files_of_model(const storage::Storage& storage);

// Whether a file is a safetensors file by its name, in letters of either case.
bool has_model_suffix(std::string_view name);

// Whether the name is that of an index, of the model or of another.
bool is_index_name(std::string_view name);

// The number of the model's files in the name of one of them: 2 for "model-00001-of-00002.safetensors".
std::optional<std::uint32_t> file_count_in(std::string_view name);

// A number that is missing among the files with one count.
struct LackingNumber {
  std::string name;   // of the missing file
  std::string known;  // the name of a file that is there
  std::uint32_t count = 0;
  std::size_t found = 0;  // how many of the numbers there are
};
// Nullopt if the names have no numbers, and if no number is missing.
std::optional<LackingNumber> lacking_number(const std::vector<std::string>& names);

}  // namespace cairn::checkpointer::model_directory
