// torch_checkpointing_directory: opens a directory that Meta's package torch_checkpointing has written, as a
// Checkpoint.
//
// The catalog has the keys, paths and kinds that a DCP checkpoint of the state {item: value} would have. Its files are
// those of the items and ranks (found_items.h), and the tensors are put together by item_catalog.h. All files are
// opened with the directory, and no link is followed: each file must agree with `metadata.pkl` before a byte is used.
// Of many files each is closed again, and a read opens it once more. JSON items are values, and the class that their
// layout names is never imported; raw items are bytes.
#pragma once

#include <cairn/checkpoint.h>

#include <memory>
#include <string>

#include "storage/storage.h"

namespace cairn::checkpointer {

// Whether the directory is one of torch_checkpointing: see found_items.h.
bool holds_torch_checkpointing(const storage::Storage& storage);

// kCorrupt for damage and for files that contradict each other, kUnsafe for files that could harm the reader;
// kUnsupported for the files of several ranks without metadata.pkl: nothing tells how the parts fit together.
Result<Checkpoint> open_torch_checkpointing(std::unique_ptr<storage::Storage> storage);

// Tells a directory from a different one with the same files: a checksum of metadata.pkl, and of the names, sizes,
// pickles and CRCs of the files.
Result<std::string> identity_of_torch_checkpointing(const storage::Storage& storage);

}  // namespace cairn::checkpointer
