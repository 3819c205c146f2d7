// A conversion:
//
// 1. Open the source and plan the keys. The target is not touched.
// 2. Read the values that are not tensors, and lay out the target's files: every offset is known now.
// 3. Claim the target. Write the files in a private folder; the writing threads fill in the tensors by reads of the
//    source, piece by piece, which check every byte. Then check the records that were read only in part.
// 4. Commit by one rename.
//
// The calling thread reports progress and asks for an interruption. All calls into the storages of source and target
// are made by tasks of a SaveWorker, as of a save: a call that hangs fails the conversion within its deadline.
#include <cairn/convert.h>

#include <map>
#include <utility>

#include "checkpointer/convert_job.h"
#include "checkpointer/directory_calls.h"
#include "checkpointer/expansion_limit.h"
#include "core/checked.h"

namespace cairn {
namespace checkpointer {

Result<std::vector<WrittenFile>> write_streams(ConvertJob& job, RankPart part, std::vector<StreamedImage> images) {
  part.file_count = static_cast<std::uint32_t>(images.size());
  part.owns_sources = true;
  std::vector<NamedImage> named;
  for (StreamedImage& image : images) {
    auto fill = [source = job.input->source, streams = std::move(image.streams), owner = std::move(image.owner)](
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
  const auto check = [source = job.input->source, threads = job.options.thread_count](WorkerState&) {
    return source->finish(threads);
  };
  CAIRN_TRY(job.worker.run("checking the records of the source", check));
  for (const WrittenFile& file : written) job.report.bytes_written += file.size;
  return written;
}

Result<void> hand_over_files(ConvertJob& job) {
  return job.worker.run("handing over its files", [](WorkerState& state) -> Result<void> {
    state.writer->files().hand_over();
    return {};
  });
}

void report_copies(ConvertJob& job) {
  for (const std::vector<std::size_t>& group : job.input->tied) {
    TiedTensors& tied = job.report.tied.emplace_back();
    for (const std::size_t i : group) tied.keys.push_back(job.input->plan.keys[i].name.fqn);
  }
}

Result<Value> convertible_value(const ConvertInput& input, const ConvertKey& key) {
  const ConvertSource& source = *input.source;
  CAIRN_TRY_ASSIGN(Value value, source.checkpoint().read_value(key.value->fqn, source.load_options()));
  if (input.allow_pickle) return value;
  const std::string unknown = first_unknown_class(value);
  if (unknown.empty()) return value;
  return Error(ErrorCode::kUnsafe,
               "a value that is not plain data: a load of the target would need to run code. Leave the key out, or, if "
               "you trust the source, allow pickle (allow_pickle=True, --allow-pickle)")
      .key(key.source_fqn())
      .expected("plain data")
      .actual(unknown);
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

Result<std::shared_ptr<const ConvertInput>> open_input(const std::filesystem::path& from, const ConvertOptions& options,
                                                       const std::shared_ptr<storage::OperationWatch>& operations) {
  CAIRN_TRY_ASSIGN(Checkpoint checkpoint, open_with(watched_directories(operations), from));
  auto input = std::make_shared<ConvertInput>();
  input->source = std::make_shared<ConvertSource>(std::move(checkpoint), options);
  input->allow_pickle = options.allow_pickle;
  const ConvertSource& source = *input->source;
  CAIRN_TRY_ASSIGN(input->plan, plan_conversion(source.catalog(), options));
  auto limit = ExpansionLimit::of(source.checkpoint());
  if (!limit) return source.explain(std::move(limit).error());
  for (const ConvertKey& key : input->plan.keys) {
    if (key.tensor == nullptr) continue;
    CAIRN_TRY(limit->add(*key.tensor, key.bytes()));
    ++input->tensors;
    input->tensor_bytes = checked_add(input->tensor_bytes, key.bytes()).value_or(UINT64_MAX);
  }
  auto tied = find_tied(input->plan, source);
  if (!tied) return source.explain(std::move(tied).error());
  input->tied = *std::move(tied);
  return std::shared_ptr<const ConvertInput>(std::move(input));
}

class ConvertRun {
 public:
  ConvertRun(const std::filesystem::path& target, const ConvertOptions& options)
      : target_(target), options_(options), worker_(options.deadlines) {}

  Result<ConvertReport> run(const std::filesystem::path& from) {
    worker_.set_interrupted([this] { return poll(); });
    CAIRN_TRY_ASSIGN(const Opened opened, open(from));
    input_ = opened.input;
    report_.from = input_->source->catalog().format;
    report_.tensors = input_->tensors;
    report_.values = input_->plan.keys.size() - input_->tensors;
    report_.tensor_bytes = input_->tensor_bytes;
    ConvertJob job{options_, target_, input_, worker_, report_};
    if (Result<void> written = write(job); !written) {
      withdraw(opened.target_was_there);
      return std::move(written).error();
    }
    worker_.leave();  // does not call `interrupted`, whose exception would hide the commit
    if (options_.progress) options_.progress({report_.tensor_bytes, report_.tensor_bytes});
    report_.conversions = input_->plan.conversions;
    return std::move(report_);
  }

 private:
  struct Opened {
    std::shared_ptr<const ConvertInput> input;
    bool target_was_there = false;
  };

  // Step 1. The task owns all that it uses: it may outlive the conversion.
  Result<Opened> open(const std::filesystem::path& from) {
    ConvertOptions options = options_;
    options.interrupted = {};
    options.progress = {};
    const auto work = [from, target = target_, options,
                       operations = worker_.operations()](WorkerState&) -> Result<Opened> {
      Opened opened;
      {
        const storage::OperationWatch::Call call(*operations, storage::OperationKind::kNames, "looking for",
                                                 target.string());
        CAIRN_TRY(check_target(from, target, options));
        std::error_code ignored;
        opened.target_was_there = std::filesystem::exists(std::filesystem::symlink_status(target, ignored));
      }
      CAIRN_TRY_ASSIGN(opened.input, open_input(from, options, operations));
      return opened;
    };
    return worker_.run("opening the source", work);
  }

  Result<void> write(ConvertJob& job) {
    switch (options_.to) {
      case CheckpointFormat::kDcp: return convert_to_dcp(job);
      case CheckpointFormat::kSafetensors: return convert_to_safetensors(job);
      case CheckpointFormat::kTorchSave: return convert_to_torch_save(job);
    }
    return Error(ErrorCode::kInternal, "an unknown format");
  }

  // After a failure.
  void withdraw(bool target_was_there) {
    input_->source->stop();
    const auto work = [target = target_, target_was_there,
                       operations = worker_.operations()](WorkerState& state) -> Result<void> {
      state.drop();
      const storage::OperationWatch::Call call(*operations, storage::OperationKind::kNames, "removing",
                                               target.string());
      if (!target_was_there) remove_empty_directory(target);
      return {};
    };
    (void)worker_.run("withdrawing what the conversion has written", work);  // the first error counts
    worker_.finish();
  }

  bool poll() {
    if (options_.progress) options_.progress({input_ ? input_->source->bytes_done() : 0, report_.tensor_bytes});
    if (!options_.interrupted || !options_.interrupted()) return false;
    if (input_) input_->source->stop();
    return true;
  }

  const std::filesystem::path& target_;
  const ConvertOptions& options_;
  std::shared_ptr<const ConvertInput> input_;  // null until the source is open
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
