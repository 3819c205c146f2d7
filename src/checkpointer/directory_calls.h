// Directory calls: save and open on any Storage; the public functions are these on a POSIX directory.
#pragma once

#include <cairn/checkpoint.h>

#include <memory>
#include <string>

#include "storage/storage.h"

namespace cairn::checkpointer {

// As cairn::save; `options.checkpoint_id` is recorded as it is.
Result<SaveReport> save_into(storage::Storage& storage, const StateDict& state, const SaveOptions& options);

// As cairn::open.
Result<Checkpoint> open_in(std::unique_ptr<storage::Storage> storage, const std::string& metadata_name = ".metadata");

}  // namespace cairn::checkpointer
