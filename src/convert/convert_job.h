// ConvertJob: a conversion with its source open and its keys planned, for the three kinds of targets.
#pragma once

#include <cairn/convert.h>
#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "convert/convert_plan.h"
#include "convert/convert_source.h"
#include "events/operation.h"
#include "save/rank_writer.h"
#include "save/save_worker.h"

namespace cairn::checkpointer {

// The open source and the planned keys. Immutable; shared with the tasks of the worker, which may outlive the
// conversion.
struct ConvertInput {
  std::shared_ptr<ConvertSource> source;
  ConvertPlan plan;  // points into the source's catalog
  // Keys (indices into the plan) whose tensors share elements of a record of the source, in groups of at least two.
  std::vector<std::vector<std::size_t>> tied = {};
  std::uint64_t tensors = 0;
  std::uint64_t tensor_bytes = 0;  // in the target
  bool allow_pickle = false;       // ConvertOptions::allow_pickle
  bool saves_shape = false;        // whether a DCP target gets the value under kNestedShapeKey
  CheckpointFormat to = CheckpointFormat::kDcp;
  bool has_selection = false;          // ConvertOptions::keys
  bool leaves_out_attributes = false;  // with the shape of the state
};

struct ConvertJob {
  const ConvertOptions& options;
  const std::filesystem::path& target;
  std::shared_ptr<const ConvertInput> input;
  SaveWorker& worker;
  ConvertReport& report;
  events::Operation& events;
  // Places in the plan's keys: the target has the stored pickle, with whole storages. Set before write_streams().
  std::unordered_set<std::size_t> as_saved = {};
  // Set by write_streams(): records of the source with bytes outside all tensors, which the target lacks.
  std::vector<std::string> unseen = {};
};

// Each claims the target, writes its files and commits them, and fills in files, sizes, tied tensors and warnings of
// the report. Until the commit the old target stays in place. All calls into the storages of source and target are made
// by tasks of the worker.
Result<void> convert_to_dcp(ConvertJob& job);
Result<void> convert_to_torch_save(ConvertJob& job);
Result<void> convert_to_safetensors(ConvertJob& job);

// --- Steps that the targets share.

// kUnsupported for a key of a safetensors model with a type that no target has, with the way out.
Result<void> check_copied(const ConvertSource& source, const ConvertKey& key);

// The value under a key of the plan. Nullopt, with input.allow_pickle, for a value that is not plain data, or that no
// Value can express: the stored pickle is to be copied. Without: kUnsafe with the class, or kUnsupported.
Result<std::optional<Value>> convertible_value(const ConvertInput& input, const ConvertKey& key);

// An error of the copy of a value, with the way out if the value's form is the cause.
Error advised(Error error);

// The image of a file. `streams` supplies the payloads, by their index, that have no memory; `owner` owns everything
// that image and streams refer to.
struct StreamedImage {
  std::string name;
  std::unique_ptr<data_file::Image> image;
  std::vector<StreamedTensor> streams;
  std::shared_ptr<const void> owner;
};

// Writes the files, and checks what was read of the source: damage, and records that no key of the target has.
Result<std::vector<WrittenFile>> write_streams(ConvertJob& job, RankPart part, std::vector<StreamedImage> images);

// Adds the job's tied tensors to the report: the target holds a copy for each key.
void report_copies(ConvertJob& job);

}  // namespace cairn::checkpointer
