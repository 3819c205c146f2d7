// torch_save_file: opens a file of torch.save that holds a state dict, as a Checkpoint.
//
// The catalog has the keys, paths and kinds that a DCP checkpoint of the file's dict would have
// (torch_file::StateFile). Each tensor is one chunk. Tensors that share a storage have equal locations. A value's
// location is the whole pickle.
#pragma once

#include <cairn/checkpoint.h>

#include <memory>
#include <string>

#include "storage/storage.h"

namespace cairn::checkpointer {

// Whether the file begins like a file of torch.save. False for a file that can't be read.
bool is_torch_save(const storage::Storage& storage, const std::string& name);

// Links are followed: the path is the caller's own. Errors as of StateFile::open().
Result<Checkpoint> open_torch_save(std::unique_ptr<storage::Storage> storage, const std::string& name);

// Tells a file from a different file under its name: size, and a checksum of the pickle and of the records' CRCs. Two
// legacy files, which have no CRCs, with equal pickles have one identity.
Result<std::string> identity_of_torch_save(const storage::Storage& storage, const std::string& name);

}  // namespace cairn::checkpointer
