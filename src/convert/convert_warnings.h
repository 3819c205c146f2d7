// convert_warnings: what a conversion has lost, in words for its report.
#pragma once

#include <cairn/checkpoint.h>
#include <cairn/convert.h>

#include <cstddef>
#include <string>
#include <unordered_set>
#include <vector>

#include "convert/convert_job.h"
#include "convert/convert_plan.h"

namespace cairn::checkpointer {

// Whether a DCP target gets the value under kNestedShapeKey.
bool saves_shape(const ConvertPlan& plan, const ConvertOptions& options, CheckpointFormat from);

// Adds a bounded number of warnings. After the last read of the source. `as_saved`: ConvertJob::as_saved.
void add_warnings(const ConvertInput& input, const ConvertOptions& options,
                  const std::unordered_set<std::size_t>& as_saved, ConvertReport& report);

// `records` of the source, with their numbers of bytes that no tensor shows.
void add_unseen_warning(std::vector<std::string> records, ConvertReport& report);

// What the source leaves open (Checkpoint::Impl::warnings), and the metadata of a safetensors source that the target
// lacks. `report.files` are those of the target.
void add_source_warnings(const Checkpoint& source, const ConvertOptions& options, ConvertReport& report);

}  // namespace cairn::checkpointer
