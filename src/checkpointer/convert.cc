// A conversion:
//
// 1. Open the source and plan the keys. The target is not touched.
// 2. Read the values that are not tensors, and lay out the target's files: every offset is known now.
// 3. Claim the target. Write the files in a private folder; the writing threads fill in the tensors by reads of the
//    source, piece by piece, which check every byte. Then check the records that were read only in part.
// 4. Commit by one rename.
//
// The calling thread plans, reads values, and reports progress; steps 3 and 4 are tasks of a SaveWorker, as of a save.
#include <cairn/convert.h>

#include <map>
#include <utility>

#include "checkpointer/convert_job.h"
#include "core/checked.h"

namespace cairn {
namespace checkpointer {

Result<std::vector<WrittenFile>> write_streams(ConvertJob& job, RankPart part, std::vector<StreamedImage> images) {
  part.file_count = static_cast<std::uint32_t>(images.size());
  part.owns_sources = true;
  std::vector<NamedImage> named;
  for (StreamedImage& image : images) {
    auto fill = [source = job.source, streams = std::move(image.streams), owner = std::move(image.owner)](
                    std::span<const data_file::PayloadPart> payload_parts) -> Result<void> {
      std::vector<StreamPart> parts;
      parts.reserve(payload_parts.size());
      for (const data_file::PayloadPart& it : payload_parts)
        parts.push_back({&streams[it.payload], it.begin, it.out, it.is_ahead});
      return source->read(parts);
    };
    named.push_back({std::move(image.name), std::move(image.image), std::move(fill)});
  }
  SaveOptions options;
  options.durability = job.options.durability;
  options.thread_count = job.options.thread_count;
  options.direct_io = job.options.direct_io;
  CAIRN_TRY_ASSIGN(std::vector<WrittenFile> written,
                   job.worker.write(RankWriter::of_images(part, std::move(named)), options));
  CAIRN_TRY(job.worker.run("checking the records of the source",
                           [source = job.source](WorkerState&) -> Result<void> { return source->finish(); }));
  for (const WrittenFile& file : written) job.report.bytes_written += file.size;
  return written;
}

void report_copies(ConvertJob& job) {
  for (const std::vector<std::size_t>& group : job.tied) {
    TiedTensors& tied = job.report.tied.emplace_back();
    for (const std::size_t i : group) tied.keys.push_back(job.plan->keys[i].name.fqn);
  }
}

namespace {

// Tensors of a file of torch.save share memory if they are windows of one record.
Result<std::vector<std::vector<std::size_t>>> find_tied(const ConvertPlan& plan, const ConvertSource& source) {
  std::vector<std::vector<std::size_t>> groups;
  if (source.catalog().format != CheckpointFormat::kTorchSave) return groups;
  std::map<std::uint64_t, std::vector<std::size_t>> by_record;
  for (std::size_t i = 0; i < plan.keys.size(); ++i) {
    const CatalogTensor* const tensor = plan.keys[i].tensor;
    if (tensor == nullptr || tensor->chunk_count() != 1 || plan.keys[i].bytes() == 0) continue;
    CAIRN_TRY_ASSIGN(const ConvertSource::Stored stored, source.stored(*tensor, 0));
    by_record[stored.tensor.record_offset].push_back(i);
  }
  for (auto& [offset, keys] : by_record) {
    if (keys.size() > 1) groups.push_back(std::move(keys));
  }
  return groups;
}

Result<void> check_target(const std::filesystem::path& source, const std::filesystem::path& target,
                          const ConvertOptions& options) {
  std::error_code ignored;  // a missing target is no problem
  const auto refuse = [&](const char* message) {
    return Error(ErrorCode::kInvalidArgument, message).actual(target.string());
  };
  if (std::filesystem::equivalent(source, target, ignored)) return refuse("the target is the source");
  if (target.empty()) return refuse("the target has no name");
  const bool is_file = options.to == CheckpointFormat::kTorchSave || target.extension() == ".safetensors";
  if (is_file && target.filename().empty()) return refuse("the target is a directory, not the name of a file");
  if (is_file && std::filesystem::is_directory(target, ignored)) {
    return refuse("the target is a directory, not the name of a file");
  }
  const bool is_safetensors = options.to == CheckpointFormat::kSafetensors;
  if (is_safetensors && is_file && std::filesystem::equivalent(source, target.parent_path(), ignored)) {
    return refuse("the target would become a part of the source");
  }
  return {};
}

// Removes the directory that a failed conversion has made. A directory with files stays.
void remove_empty_directory(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (std::filesystem::is_directory(directory, ignored)) std::filesystem::remove(directory, ignored);
}

class ConvertRun {
 public:
  ConvertRun(const std::filesystem::path& target, const ConvertOptions& options)
      : target_(target), options_(options), worker_(options.deadlines) {
    std::error_code ignored;
    target_was_there_ = std::filesystem::exists(std::filesystem::symlink_status(target, ignored));
  }

  Result<ConvertReport> run(const std::filesystem::path& from) {
    CAIRN_TRY(check_target(from, target_, options_));
    CAIRN_TRY_ASSIGN(Checkpoint checkpoint, open(from));
    source_ = std::make_shared<ConvertSource>(std::move(checkpoint), options_);
    auto plan = plan_conversion(source_->catalog(), options_);
    if (!plan) return std::move(plan).error();
    const auto shared_plan = std::make_shared<ConvertPlan>(*std::move(plan));
    report_.from = source_->catalog().format;
    for (const ConvertKey& key : shared_plan->keys) {
      if (key.tensor == nullptr) {
        ++report_.values;
        continue;
      }
      CAIRN_TRY(source_->check_size(*key.tensor));
      ++report_.tensors;
      report_.tensor_bytes = checked_add(report_.tensor_bytes, key.bytes()).value_or(UINT64_MAX);
      CAIRN_TRY(source_->check_expansion(report_.tensor_bytes));
    }
    worker_.set_interrupted([this] { return poll(); });
    ConvertJob job{options_, target_, shared_plan, source_, {}, worker_, report_};
    CAIRN_TRY_ASSIGN(job.tied, find_tied(*shared_plan, *source_));
    CAIRN_TRY(write(job));
    worker_.leave();  // does not call `interrupted`, whose exception would hide the commit
    if (options_.progress) options_.progress({report_.tensor_bytes, report_.tensor_bytes});
    report_.conversions = shared_plan->conversions;
    return std::move(report_);
  }

 private:
  Result<void> write(ConvertJob& job) {
    Result<void> written;
    switch (options_.to) {
      case CheckpointFormat::kDcp: written = convert_to_dcp(job); break;
      case CheckpointFormat::kSafetensors: written = convert_to_safetensors(job); break;
      case CheckpointFormat::kTorchSave: written = convert_to_torch_save(job); break;
    }
    if (!written) {
      worker_.finish();
      if (!target_was_there_) remove_empty_directory(target_);
    }
    return written;
  }

  bool poll() {
    if (options_.progress) options_.progress({source_->bytes_done(), report_.tensor_bytes});
    if (!options_.interrupted || !options_.interrupted()) return false;
    source_->stop();
    return true;
  }

  const std::filesystem::path& target_;
  const ConvertOptions& options_;
  std::shared_ptr<ConvertSource> source_;
  bool target_was_there_ = false;
  ConvertReport report_;
  SaveWorker worker_;  // the last member: its destructor may call poll()
};

}  // namespace
}  // namespace checkpointer

Result<ConvertReport> convert(const std::filesystem::path& source, const std::filesystem::path& target,
                              const ConvertOptions& options) {
  Result<ConvertReport> report = checkpointer::ConvertRun(target, options).run(source);
  if (report) return report;
  return std::move(report).error().while_doing("converting '" + source.string() + "' to '" + target.string() + "'");
}

}  // namespace cairn
