#include "commit/checkpoint_commit.h"

#include <algorithm>
#include <optional>

#include "commit/model/model_files.h"
#include "commit/pin.h"
#include "format/safetensors/index.h"

namespace cairn::commit {
namespace {

std::string save_in(const MetadataInPlace& metadata) {
  if (metadata.record) return "save " + to_hex(metadata.record->save_id);
  return metadata.present ? "a stock checkpoint" : "none";
}

}  // namespace

Result<void> CheckpointCommit::check_overwrite(const MetadataInPlace& now) const {
  if (!now.present) return {};
  if (!options_.overwrite) {  // DCP's wording, which callers match
    return Error(ErrorCode::kInvalidArgument, "Checkpoint already exists and overwrite=False").file(metadata_name_);
  }
  if (options_.overwrite_pinned || options_.alone_as_rank) return {};
  CAIRN_TRY_ASSIGN(const std::optional<std::string> pin, note_of_pin(storage_));
  if (!pin) return {};
  return Error(ErrorCode::kUnavailable, "the checkpoint in the directory is " + text_of_pin(*pin) +
                                            ": unpin it (`cairn unpin`), or move the directory")
      .file(std::string(kPinName));
}

Result<void> CheckpointCommit::check_model(const std::vector<storage::ListedFile>& files) const {
  const auto of_model = std::find_if(files.begin(), files.end(), [](const storage::ListedFile& file) {
    return !file.is_folder && (file.name == safetensors::kIndexName || file.name.ends_with(kModelSuffix));
  });
  if (options_.beside_a_model || of_model == files.end()) return {};
  return Error(ErrorCode::kInvalidArgument,
               "the directory holds a safetensors model, which programs that read models would still find: choose a "
               "new directory")
      .file(of_model->name);
}

Result<void> CheckpointCommit::check_not_superseded(const MetadataInPlace& now) const {
  if (now.same_as(seen_) || !now.present) return {};  // absent: removed since, which supersedes no save
  if (now.record && is_earlier_save(now.record->job_id, now.record->save_number)) return {};
  return Error(ErrorCode::kSuperseded,
               "another save committed into the directory first; the files of this save are withdrawn")
      .file(metadata_name_)
      .expected(save_in(seen_))
      .actual(save_in(now));
}

}  // namespace cairn::commit
