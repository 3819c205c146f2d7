// CommitContent: what a commit makes visible, in whatever form: the data files, and the document that names them.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "commit/lease.h"
#include "format/manifest/commit_record.h"
#include "format/safetensors/index.h"

namespace cairn::commit {

struct CommitContent {
  SaveForm form;
  std::vector<std::string> files;  // final names
  // The document: `.metadata`, or the index of a model. Called at most once, and not for a model without an index.
  std::function<Result<std::string>()> render;
};

// A safetensors model.
struct ModelContent {
  std::vector<std::string> files;  // final names
  safetensors::Index index;        // the file of each tensor; unused for shards
  std::uint64_t tensor_bytes = 0;
};

// Both use the first arguments by reference. Of a checkpoint, `.metadata` is the pickle and the record; of a directory,
// the record alone is the document. Fills in the fields of the record that the save knows: save, job, number, pickle.
CommitContent content_of_checkpoint(const SaveIdentity& identity, const std::string& pickle,
                                    manifest::CommitRecord record);
CommitContent content_of_model(const SaveIdentity& identity, const ModelContent& model);

}  // namespace cairn::commit
