// Tied tensors: tensors of a file of torch.save that share elements. No other format has them.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <vector>

#include "checkpointer/convert_plan.h"
#include "checkpointer/convert_source.h"

namespace cairn::checkpointer {

// Keys (indices into the plan) whose tensors are windows of one record that overlap, in groups of at least two.
Result<std::vector<std::vector<std::size_t>>> find_tied(const ConvertPlan& plan, const ConvertSource& source);

// Sets `with_attributes` of the plan.
void note_attributes(const ConvertSource& source, ConvertPlan& plan);

// Sets `copied_inside` and `unconverted_inside` of the plan.
Result<void> note_inner_tensors(const ConvertSource& source, const ConvertOptions& options, ConvertPlan& plan);

}  // namespace cairn::checkpointer
