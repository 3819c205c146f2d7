// safetensors_model: opens a safetensors file, or a directory of safetensors files, as a Checkpoint.
//
// A directory holds one model: the files that `model.safetensors.index.json` names; without an index
// `model.safetensors`, or else all files `*.safetensors`. A tensor lies in one file. In the files that torch's
// HuggingFaceStorageWriter wrote on several ranks (with "DCP_SHARDING_INFO" in the metadata), a tensor may lie in
// several files, a box in each. Links are followed: the cache of Hugging Face Hub consists of links. A file is read
// only if its header covers the file exactly, so a link to any other file gives no byte of that file away. The index
// may name files in subfolders; on the way to such a file no link is followed. A tensor that the index of another
// program does not name is left out, as by transformers; Checkpoint::Impl::warnings names the tensor.
#pragma once

#include <cairn/checkpoint.h>

#include <memory>
#include <optional>
#include <string>

#include "format/safetensors/save_order.h"
#include "storage/storage.h"

namespace cairn::checkpointer {

// Whether the directory holds an index or a file `*.safetensors`, and no trace of a DCP checkpoint: a metadata file of
// any name, or a data file. Beside such a trace a model is not what the caller saved. The private folder of a save is
// no trace: a save that has published no file has changed nothing.
bool holds_model_alone(const storage::Storage& storage);

// The model of the directory, or of its file `only_file` if that is not empty. kCorrupt names file, key and offset;
// kUnsafe for an index that names a file outside the directory, or a file in a subfolder behind a link.
Result<Checkpoint> open_safetensors(std::unique_ptr<storage::Storage> storage, const std::string& only_file);

// The place of the model's save in the order of all saves, by the header of one file. Nullopt if another program wrote
// the file, and if the directory holds no model.
Result<std::optional<safetensors::SaveOrder>> order_of_model(const storage::Storage& storage);

// Tells a model from a different one of the same names: number and bytes of the files, and a checksum of the headers.
Result<std::string> identity_of_safetensors(const storage::Storage& storage, const std::string& only_file);

}  // namespace cairn::checkpointer
