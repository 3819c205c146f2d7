#include "commit/commit_content.h"

#include <span>
#include <utility>

#include "commit/model/model_files.h"
#include "core/checksum.h"

namespace cairn::commit {

CommitContent content_of_checkpoint(const SaveIdentity& identity, const std::string& pickle,
                                    manifest::CommitRecord record) {
  record.save_id = identity.save_id;
  record.job_id = identity.job_id;
  record.job_start = identity.job_start;
  record.save_number = identity.save_number;
  record.front_bytes = pickle.size();
  record.front_checksum = crc32(std::as_bytes(std::span(pickle)));
  CommitContent content{identity.form, {}, {}};
  for (const manifest::CommitRecord::File& file : record.files) content.files.push_back(file.name);
  content.render = [&pickle, record = std::move(record)]() -> Result<std::string> {
    return pickle + manifest::encode_commit_record(record);
  };
  return content;
}

CommitContent content_of_model(const SaveIdentity& identity, const ModelContent& model) {
  const auto render = [&model, id = to_hex(identity.save_id)] {
    safetensors::Index index = model.index;
    // The index of a single file has no save (5b of model_commit.cc).
    if (model.files != std::vector{std::string(kSingleModelName)}) index.save_id = id;
    return safetensors::render_index(index, model.tensor_bytes);
  };
  return {SaveForm::kModel, model.files, render};
}

}  // namespace cairn::commit
