// The conversion into safetensors: one file, or a directory with one file or several with an index.
#include <deque>
#include <utility>

#include "checkpoint/checkpoint_impl.h"
#include "checkpoint/model_directory.h"
#include "commit/job_identity.h"
#include "commit/model/model_files.h"
#include "convert/convert_job.h"
#include "data_file/safetensors_image.h"
#include "format/safetensors/file_set.h"
#include "format/safetensors/header.h"
#include "save/model_image.h"
#include "save/save_calls.h"

namespace cairn::checkpointer {
namespace {

struct Tensors {
  std::shared_ptr<const ConvertInput> input;
  std::deque<TensorView> views;  // by key
};

Result<std::shared_ptr<Tensors>> make_tensors(const ConvertJob& job) {
  auto tensors = std::make_shared<Tensors>();
  tensors->input = job.input;
  for (const ConvertKey& key : job.input->plan.keys) {
    if (key.tensor == nullptr) {
      CAIRN_TRY(check_copied(*job.input->source, key));
      return Error(ErrorCode::kUnsupported,
                   "safetensors holds only tensors: leave the key out (option exclude), or select the model's keys "
                   "(option keys)")
          .key(key.source_fqn());
    }
    if (!safetensors::type_name(key.dtype)) {
      return Error(ErrorCode::kUnsupported, "safetensors has no such type")
          .key(key.source_fqn())
          .actual(name_of(key.dtype));
    }
    tensors->views.push_back(TensorView::contiguous(static_cast<void*>(nullptr), key.dtype, key.tensor->shape));
  }
  return tensors;
}

// The keys of each file, in order: a file holds at most `bytes_max` bytes, or one tensor.
std::vector<std::vector<std::size_t>> shards_of(const ConvertPlan& plan, std::uint64_t bytes_max) {
  std::vector<std::vector<std::size_t>> shards(1);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    const std::uint64_t more = plan.keys[i].bytes();
    if (bytes_max != 0 && !shards.back().empty() && more > bytes_max - std::min(bytes, bytes_max)) {
      shards.emplace_back();
      bytes = 0;
    }
    shards.back().push_back(i);
    bytes += more;
  }
  return shards;
}

// The entries of the header: those of other programs in the source, and Cairn's own for a save.
std::vector<std::pair<std::string, std::string>> metadata_of(const ConvertJob& job, const commit::SaveIdentity& save,
                                                             const safetensors::FileSet& set) {
  const ModelMetadata& source = job.input->source->checkpoint().impl().model_metadata;
  std::vector<std::pair<std::string, std::string>> metadata(source.entries.begin(), source.entries.end());
  if (job.options.plain) return metadata;
  for (auto& entry : save_metadata(save, set)) metadata.push_back(std::move(entry));
  return metadata;
}

// The members of the index's "metadata". A count of elements holds only for all tensors of the source.
std::vector<std::pair<std::string, std::string>> index_metadata_of(const ConvertJob& job) {
  auto metadata = job.input->source->checkpoint().impl().model_metadata.of_index;
  const bool is_whole = job.options.keys.empty() && job.options.exclude.empty();
  if (!is_whole) std::erase_if(metadata, [](const auto& entry) { return entry.first == kTotalParametersName; });
  return metadata;
}

Result<StreamedImage> make_image(const ConvertJob& job, const std::shared_ptr<Tensors>& tensors,
                                 const std::vector<std::size_t>& shard, const commit::SaveIdentity& save,
                                 const safetensors::FileSet& set) {
  std::vector<data_file::SafetensorsImage::Item> items;
  items.reserve(shard.size());
  for (const std::size_t i : shard) items.push_back({job.input->plan.keys[i].name.fqn, &tensors->views[i]});
  auto metadata = metadata_of(job, save, set);
  CAIRN_TRY_ASSIGN(data_file::SafetensorsImage image,
                   job.options.plain ? data_file::SafetensorsImage::make_plain(items, std::move(metadata))
                                     : data_file::SafetensorsImage::make(save.save_id, items, std::move(metadata)));
  StreamedImage made;
  for (std::size_t payload = 0; payload < image.payload_count(); ++payload) {
    const ConvertKey& key = job.input->plan.keys[shard[image.item_of(payload)]];
    made.streams.push_back({key.tensor, key.dtype, 0});
  }
  made.image = std::make_unique<data_file::SafetensorsImage>(std::move(image));
  made.owner = tensors;
  return made;
}

}  // namespace

Result<void> convert_to_safetensors(ConvertJob& job) {
  const bool is_file = model_directory::has_model_suffix(job.target.filename().string());
  if (is_file && job.options.max_shard_bytes != 0) {
    return Error(ErrorCode::kInvalidArgument, "shards need a directory as the target, not a .safetensors file");
  }
  CAIRN_TRY_ASSIGN(const std::shared_ptr<Tensors> tensors, make_tensors(job));
  const std::vector<std::vector<std::size_t>> shards = shards_of(job.input->plan, job.options.max_shard_bytes);
  const auto count = static_cast<std::uint32_t>(shards.size());
  using Kind = safetensors::FileSet::Kind;
  const safetensors::FileSet set{count == 1 ? Kind::kAlone : Kind::kIndexed, count};
  const std::filesystem::path parent = job.target.has_parent_path() ? job.target.parent_path() : ".";
  const std::filesystem::path directory = is_file ? parent : job.target;
  CAIRN_TRY(job.worker.open(made_directory(directory)));
  commit::ModelClaimOptions claim;
  claim.kind = set.kind;
  claim.overwrite = job.options.overwrite;
  if (is_file) claim.file_name = job.target.filename().string();
  const std::string alone = is_file ? claim.file_name : std::string(commit::kSingleModelName);
  RankPart part;
  CAIRN_TRY_ASSIGN(part.ticket, job.worker.claim_model(commit::copy_identity(commit::SaveForm::kModel), claim));
  part.publishes = set.kind == Kind::kIndexed;
  commit::ModelContent content;
  content.index.metadata = index_metadata_of(job);
  std::vector<StreamedImage> images;
  for (std::uint32_t i = 0; i < count; ++i) {
    CAIRN_TRY_ASSIGN(StreamedImage image, make_image(job, tensors, shards[i], part.ticket.identity, set));
    image.name = set.kind == Kind::kAlone ? alone : commit::model_file_name(part.ticket, {i + 1, count, std::nullopt});
    content.files.push_back(image.name);
    for (const std::size_t key : shards[i]) {
      content.index.files.emplace_back(job.input->plan.keys[key].name.fqn, image.name);
      content.tensor_bytes += job.input->plan.keys[key].bytes();
    }
    images.push_back(std::move(image));
  }
  job.report.files = content.files;
  job.report.directory = directory;
  CAIRN_TRY(job.worker.expect(content.files));
  CAIRN_TRY(write_streams(job, part, std::move(images)));
  CAIRN_TRY(job.worker.hand_over_files());
  CAIRN_TRY_ASSIGN(commit::CommitReport committed, job.worker.commit_model(std::move(content), job.options.durability));
  job.report.warnings = std::move(committed.warnings);
  if (set.kind == Kind::kIndexed) job.report.files.emplace_back(safetensors::kIndexName);
  report_copies(job);
  return {};
}

}  // namespace cairn::checkpointer
