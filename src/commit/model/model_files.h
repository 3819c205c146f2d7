// Model files: the names of the files of a safetensors model, and the save that wrote a file.
//
// The names are those of torch's HuggingFaceStorageWriter: `model-00001-of-00002.safetensors`, and
// `shard-00001-model-00001-of-00002.safetensors` if each rank writes its own shards.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "commit/save_ticket.h"
#include "format/safetensors/file_set.h"
#include "format/safetensors/save_order.h"
#include "storage/storage.h"

namespace cairn::commit {

inline constexpr std::string_view kModelSuffix = ".safetensors";
// The model of a directory in one file, which transformers prefers to an index.
inline constexpr std::string_view kSingleModelName = "model.safetensors";

// A file of a model of several files. Both numbers count from 1, as in torch.
struct ModelFileNumber {
  std::uint32_t file = 1;
  std::uint32_t file_max = 1;               // the largest number of a file
  std::optional<std::uint32_t> shard = {};  // the rank + 1, if each rank writes its own shards
};

// The final name: with the save's id if the ticket is not fresh, so that two saves never share a name.
std::string model_file_name(const SaveTicket& ticket, const ModelFileNumber& number);
// Whether `name` is `model.safetensors`, or has the form of model_file_name(): the model of its directory, whichever
// program wrote the file. All other names are foreign, unless an index names them.
bool is_model_file_name(std::string_view name);

// Whether `name` ends with the id of a save, as model_file_name() renders it.
bool names_a_save(std::string_view name);

// The place of a save in the order of all saves.
safetensors::SaveOrder order_of_save(const SaveIdentity& identity);

// What a file's header says of the save that wrote the file. All are nullopt for a file of another program: for a
// header without checksums of its own (format/safetensors/checksums.h), into which the metadata may have been copied.
struct ModelFileOrigin {
  std::optional<SaveId> save_id;
  std::optional<safetensors::FileSet> set;
  std::optional<safetensors::SaveOrder> order;
};
// kNotFound, or kCorrupt for a file that is no safetensors file.
Result<ModelFileOrigin> origin_of_model_file(const storage::Storage& storage, const std::string& name);

}  // namespace cairn::commit
