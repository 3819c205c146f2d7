// Tied tensors: tensors of a file of torch.save that share elements. No other format has them.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <vector>

#include "convert/convert_plan.h"
#include "convert/convert_source.h"

namespace cairn::checkpointer {

// Keys (indices into the plan) whose tensors are windows of one record that overlap, in groups of at least two.
Result<std::vector<std::vector<std::size_t>>> find_tied(const ConvertPlan& plan, const ConvertSource& source);

// The identity of the object of a key (Value::identity()), equal for two keys of one object; 0 for a value, for a
// tensor that the conversion changes, and for a source of any other format.
std::uint64_t object_of(const ConvertPlan& plan, std::size_t key, const ConvertSource& source);
// The same as StateFile::InnerTensor::object.
std::uint64_t tensor_object_of(const ConvertPlan& plan, std::size_t key, const ConvertSource& source);

// Sets `shared_inside` and `unconverted_inside` of the plan, which has its attributes.
Result<void> note_inner_tensors(const ConvertSource& source, const ConvertOptions& options, ConvertPlan& plan);

}  // namespace cairn::checkpointer
