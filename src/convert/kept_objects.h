// kept_objects: what a conversion keeps of the objects in a file of torch.save, beside elements and values: attributes
// of tensors, and dicts and lists that are one object at several places.
#pragma once

#include <cairn/convert.h>
#include <cairn/result.h>

#include "convert/convert_plan.h"
#include "convert/convert_source.h"
#include "core/nested_shape.h"

namespace cairn::checkpointer {

// Sets `attributes` and `without_attributes` of the plan. Only a file of torch.save has attributes, and only those that
// are plain data. `keeps_any`: false if the caller leaves out all attributes.
Result<void> note_attributes(const ConvertSource& source, const ConvertOptions& options, bool keeps_any,
                             ConvertPlan& plan);

// Sets `whole_containers` and `separated` of the plan, which has its attributes, for a file of torch.save as the
// target. A container is whole if the plan changes and leaves out nothing inside. `shape` is of the source.
void note_containers(const ConvertSource& source, const NestedShape& shape, ConvertPlan& plan);

}  // namespace cairn::checkpointer
