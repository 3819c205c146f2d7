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
#include <cairn/catalog.h>
#include <cairn/convert.h>

#include <algorithm>
#include <utility>

#include "checkpoint/expansion_limit.h"
#include "checkpoint/model_directory.h"
#include "checkpoint/open_calls.h"
#include "checkpoint/recorded_dtypes.h"
#include "checkpoint/source_files.h"
#include "convert/consumed_records.h"
#include "convert/convert_job.h"
#include "convert/convert_warnings.h"
#include "convert/kept_objects.h"
#include "convert/key_twins.h"
#include "convert/replaceable_file.h"
#include "convert/tied_tensors.h"
#include "core/checked.h"
#include "format/torch_file/weights_only.h"

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
  CAIRN_TRY_ASSIGN(job.unseen, job.worker.run("looking for bytes that the target lacks",
                                              [input = job.input, as_saved = job.as_saved](WorkerState&) {
                                                return check_consumed(*input, as_saved);
                                              }));
  for (const WrittenFile& file : written) job.report.bytes_written += file.size;
  job.events.step(EventKind::kWritten, job.report.bytes_written);
  return written;
}

void report_copies(ConvertJob& job) {
  for (const std::vector<std::size_t>& group : job.input->tied) {
    TiedTensors& tied = job.report.tied.emplace_back();
    for (const std::size_t i : group) tied.keys.push_back(job.input->plan.keys[i].name.fqn);
  }
}

Result<void> check_copied(const ConvertSource& source, const ConvertKey& key) {
  Result<void> checked = source.checkpoint().impl().check_read(key.source_fqn());
  return checked ? checked : advised(std::move(checked).error());
}

Result<std::optional<Value>> convertible_value(const ConvertInput& input, const ConvertKey& key) {
  using Maybe = std::optional<Value>;
  const ConvertSource& source = *input.source;
  CAIRN_TRY(check_copied(source, key));
  Result<Value> value = source.checkpoint().read_value(key.value->fqn, source.load_options());
  if (!value && value.error().code() == ErrorCode::kUnsupported) {
    if (input.allow_pickle) return Maybe();
    return std::move(value).error().while_doing(
        "reading a value of which only the pickle can be copied; leave the key out (option exclude), or, if you trust "
        "the source, allow pickle (option allow_pickle)");
  }
  if (!value) return std::move(value).error();
  const std::string unknown = torch_file::first_refused_class(*value);
  if (unknown.empty()) return Maybe(*std::move(value));
  if (input.allow_pickle) return Maybe();
  return Error(ErrorCode::kUnsafe,
               "a value that is not plain data: a load of the target would need to run code. Leave the key out "
               "(option exclude), or, if you trust the source, allow pickle (option allow_pickle)")
      .key(key.source_fqn())
      .expected("plain data")
      .actual(unknown);
}

Error advised(Error error) {
  if (error.code() != ErrorCode::kUnsupported) return error;
  return std::move(error).while_doing("copying a key; the key can be left out (option exclude)");
}

namespace {

bool is_file_target(const std::filesystem::path& target, const ConvertOptions& options) {
  return options.to == CheckpointFormat::kTorchSave || (options.to == CheckpointFormat::kSafetensors &&
                                                        model_directory::has_model_suffix(target.filename().string()));
}

// Of a target of one file that is a symbolic link: the file that the link names, which need not exist.
Result<std::filesystem::path> behind_links(const std::filesystem::path& target, const ConvertOptions& options) {
  constexpr int kLinksMax = 40;  // as Linux
  if (!is_file_target(target, options)) return target;
  std::filesystem::path named = target;
  std::error_code error;
  for (int i = 0; i < kLinksMax; ++i) {
    if (std::filesystem::is_symlink(std::filesystem::symlink_status(named, error))) {
      const std::filesystem::path next = std::filesystem::read_symlink(named, error);
      named = named.parent_path() / next;
    } else if (is_file_target(named, options)) {
      return named;
    } else {
      break;
    }
  }
  return Error(ErrorCode::kInvalidArgument, "the target is a symbolic link to no name for such a file")
      .expected(options.to == CheckpointFormat::kSafetensors ? "a name that ends in .safetensors"
                                                             : "the name of a file")
      .actual(named.string());
}

Result<void> check_target(const std::filesystem::path& source, const std::filesystem::path& target,
                          const ConvertOptions& options) {
  std::error_code ignored;  // a missing target is no problem
  const auto refuse = [&](const char* message) {
    return Error(ErrorCode::kInvalidArgument, message).actual(target.string());
  };
  if (std::filesystem::equivalent(source, target, ignored)) return refuse("the target is the source");
  if (target.empty()) return refuse("the target has no name");
  const bool is_file = is_file_target(target, options);
  if (options.plain && !is_file) {
    return refuse(
        "plain output is one file: name a file as the target, of safetensors or torch.save, for example "
        "model.safetensors");
  }
  if (is_file && target.filename().empty()) return refuse("the target is a directory, not the name of a file");
  if (is_file && std::filesystem::is_directory(target, ignored)) {
    return refuse("the target is a directory, not the name of a file");
  }
  const bool is_safetensors = options.to == CheckpointFormat::kSafetensors;
  if (!is_safetensors && model_directory::has_model_suffix(target.filename().string())) {
    return refuse("the name of the target means safetensors: choose another name");
  }
  const std::filesystem::path parent = target.has_parent_path() ? target.parent_path() : ".";
  if (is_safetensors && is_file && std::filesystem::equivalent(source, parent, ignored)) {
    return refuse("the target would become a part of the source");
  }
  return {};
}

// The conversion must not replace a file of its source. check_target() knows only the names of the arguments.
Result<void> check_apart(const Checkpoint& source, const std::filesystem::path& target, const ConvertOptions& options) {
  std::error_code ignored;  // a missing target is no problem
  if (!std::filesystem::exists(target, ignored)) return {};
  const auto refuse = [&](const std::filesystem::path& file) {
    return Error(ErrorCode::kInvalidArgument, "the target would replace a file of the source")
        .file(file.string())
        .actual(target.string());
  };
  if (is_file_target(target, options)) {
    const std::optional<std::filesystem::path> file = source_file_at(source, target);
    return file ? refuse(*file) : Result<void>();
  }
  const bool replaces_models = options.to == CheckpointFormat::kSafetensors;
  if (!replaces_models || source.catalog().format != CheckpointFormat::kSafetensors) return {};
  for (const std::filesystem::path& file : source_files(source)) {
    if (std::filesystem::equivalent(file.parent_path(), target, ignored)) return refuse(file);
  }
  return {};
}

// The directories that a conversion makes, innermost first: those that are missing before it.
std::vector<std::filesystem::path> missing_directories(const std::filesystem::path& target,
                                                       const ConvertOptions& options) {
  std::vector<std::filesystem::path> missing;
  std::error_code ignored;
  const bool is_file = is_file_target(target, options) || !target.has_filename();
  std::filesystem::path next = is_file ? target.parent_path() : target;
  while (!next.empty() && !std::filesystem::exists(std::filesystem::symlink_status(next, ignored))) {
    missing.push_back(next);
    next = next.parent_path();
  }
  return missing;
}

// After a failure. A directory in which another program has made a file meanwhile stays.
void remove_empty_directories(const std::vector<std::filesystem::path>& innermost_first) {
  std::error_code ignored;
  for (const std::filesystem::path& directory : innermost_first) {
    if (std::filesystem::is_directory(directory, ignored)) std::filesystem::remove(directory, ignored);
  }
}

bool is_selected(const ConvertOptions& options, std::string_view key) {
  const auto matches = [key](const std::string& pattern) { return matches_key(pattern, key); };
  return selects_key(options.keys, key) && std::none_of(options.exclude.begin(), options.exclude.end(), matches);
}

bool leaves_out_shape(const ConvertOptions& options) {
  return std::any_of(options.exclude.begin(), options.exclude.end(),
                     [](const std::string& pattern) { return matches_key(pattern, kNestedShapeKey); });
}

// Nothing if the target has no nested state, or if a value with the shape is left out unread.
Result<NestedShape> shape_of(const ConvertSource& source, const ConvertOptions& options) {
  const bool is_read = source.catalog().format == CheckpointFormat::kTorchSave || !leaves_out_shape(options);
  if (options.to == CheckpointFormat::kSafetensors || !is_read) return NestedShape();
  Result<NestedShape> shape = source.shape();
  if (!shape) return source.explain(std::move(shape).error());
  return shape;
}

Result<std::shared_ptr<const ConvertInput>> open_input(const std::filesystem::path& from, const ConvertOptions& options,
                                                       const std::shared_ptr<storage::OperationWatch>& operations) {
  CAIRN_TRY_ASSIGN(Checkpoint checkpoint, open_with(watched_directories(operations), from));
  CAIRN_TRY(take_recorded_dtypes(checkpoint.impl(), options.follow_links,
                                 [&](std::string_view key) { return is_selected(options, key); }));
  auto input = std::make_shared<ConvertInput>();
  input->source = std::make_shared<ConvertSource>(std::move(checkpoint), options);
  input->allow_pickle = options.allow_pickle;
  input->to = options.to;
  input->has_selection = !options.keys.empty();
  input->leaves_out_attributes = leaves_out_shape(options);
  const ConvertSource& source = *input->source;
  CAIRN_TRY_ASSIGN(const NestedShape shape, shape_of(source, options));
  CAIRN_TRY_ASSIGN(input->plan, plan_conversion(source.catalog(), options, shape));
  if (options.to == CheckpointFormat::kDcp || leaves_out_shape(options)) CAIRN_TRY(settle_twins(input->plan));
  if (leaves_out_shape(options)) input->plan.shape = NestedShape();
  auto noted = note_attributes(source, options, !input->leaves_out_attributes, input->plan);
  if (!noted) return source.explain(std::move(noted).error());
  const bool keeps_containers = options.to == CheckpointFormat::kTorchSave && !leaves_out_shape(options);
  if (keeps_containers) note_containers(source, shape, input->plan);
  input->saves_shape = saves_shape(input->plan, options, source.catalog().format);
  auto limit = ExpansionLimit::of(source.checkpoint());
  if (!limit) return source.explain(std::move(limit).error());
  for (const ConvertKey& key : input->plan.keys) {
    if (key.tensor == nullptr) continue;
    CAIRN_TRY(limit->add(*key.tensor, key.bytes()));
    ++input->tensors;
    input->tensor_bytes = checked_add(input->tensor_bytes, key.bytes()).value_or(UINT64_MAX);
  }
  if (options.to != CheckpointFormat::kSafetensors) {
    noted = note_inner_tensors(source, options, input->plan);
    if (!noted) return source.explain(std::move(noted).error());
  }
  auto tied = find_tied(input->plan, source);
  if (!tied) return source.explain(std::move(tied).error());
  input->tied = *std::move(tied);
  return std::shared_ptr<const ConvertInput>(std::move(input));
}

class ConvertRun {
 public:
  ConvertRun(const std::filesystem::path& target, const ConvertOptions& options, events::Operation& events)
      : target_(target), options_(options), events_(events), worker_(options.deadlines) {}

  Result<ConvertReport> run(const std::filesystem::path& from) {
    worker_.set_interrupted([this] { return poll(); });
    CAIRN_TRY_ASSIGN(const Opened opened, open(from));
    input_ = opened.input;
    target_ = opened.target;
    report_.from = input_->source->catalog().format;
    report_.tensors = input_->tensors;
    report_.values = input_->plan.keys.size() - input_->tensors;
    report_.tensor_bytes = input_->tensor_bytes;
    events_.step(EventKind::kPlanned);
    ConvertJob job{options_, target_, input_, worker_, report_, events_};
    if (Result<void> written = write(job); !written) {
      withdraw(opened.missing_directories);
      return std::move(written).error();
    }
    worker_.leave();  // does not call `interrupted`, whose exception would hide the commit
    note_progress(report_.tensor_bytes);
    report_.conversions = input_->plan.conversions;
    add_warnings(*input_, options_, job.as_saved, report_);
    add_unseen_warning(std::move(job.unseen), report_);
    add_source_warnings(input_->source->checkpoint(), options_, report_);
    return std::move(report_);
  }

 private:
  struct Opened {
    std::filesystem::path target;  // behind links
    std::shared_ptr<const ConvertInput> input;
    std::vector<std::filesystem::path> missing_directories;  // before the conversion
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
        CAIRN_TRY_ASSIGN(opened.target, behind_links(target, options));
        CAIRN_TRY(check_target(from, opened.target, options));
        opened.missing_directories = missing_directories(opened.target, options);
      }
      CAIRN_TRY_ASSIGN(opened.input, open_input(from, options, operations));
      const storage::OperationWatch::Call call(*operations, storage::OperationKind::kNames, "looking for",
                                               target.string());
      CAIRN_TRY(check_apart(opened.input->source->checkpoint(), opened.target, options));
      const bool is_file = is_file_target(opened.target, options);
      if (is_file && options.overwrite && !options.overwrite_any_file) {
        CAIRN_TRY(check_replaceable(watched_directories(operations), opened.target));
      }
      return opened;
    };
    return worker_.run("opening the source", work);
  }

  Result<void> write(ConvertJob& job) {
    switch (options_.to) {
      case CheckpointFormat::kDcp: return convert_to_dcp(job);
      case CheckpointFormat::kSafetensors: return convert_to_safetensors(job);
      case CheckpointFormat::kTorchSave: return convert_to_torch_save(job);
      case CheckpointFormat::kTorchCheckpointing: break;  // plan_conversion() has refused
    }
    return Error(ErrorCode::kInternal, "an unknown format");
  }

  // After a failure.
  void withdraw(const std::vector<std::filesystem::path>& made) {
    input_->source->stop();
    const auto work = [target = target_, made, operations = worker_.operations()](WorkerState& state) -> Result<void> {
      state.drop();
      const storage::OperationWatch::Call call(*operations, storage::OperationKind::kNames, "removing",
                                               target.string());
      remove_empty_directories(made);
      return {};
    };
    (void)worker_.run("withdrawing what the conversion has written", work);  // the first error counts
    worker_.finish();
  }

  void note_progress(std::uint64_t bytes_done) const {
    events_.work().set(bytes_done, report_.tensor_bytes);
    if (options_.progress) options_.progress({bytes_done, report_.tensor_bytes});
  }

  bool poll() {
    note_progress(input_ ? input_->source->bytes_done() : 0);
    if (!options_.interrupted || !options_.interrupted()) return false;
    if (input_) input_->source->stop();
    return true;
  }

  std::filesystem::path target_;
  const ConvertOptions& options_;
  events::Operation& events_;
  std::shared_ptr<const ConvertInput> input_;  // null until the source is open
  ConvertReport report_;
  SaveWorker worker_;  // the last member: its destructor may call poll()
};

}  // namespace
}  // namespace checkpointer

Result<ConvertReport> convert(const std::filesystem::path& source, const std::filesystem::path& target,
                              const ConvertOptions& options) {
  events::Operation events = events::Operation::begin(EventOperation::kConvert, {target.native()});
  Result<ConvertReport> report = checkpointer::ConvertRun(target, options, events).run(source);
  if (!report) {
    report = std::move(report).error().while_doing("converting '" + source.string() + "' to '" + target.string() + "'");
    events.fail(report.error());
    return report;
  }
  events.end(EventKind::kCommitted, report->bytes_written);
  events::add_trace_problem(report->warnings);
  return report;
}

}  // namespace cairn
