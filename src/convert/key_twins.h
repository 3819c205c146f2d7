// settle_twins: keys of one dict with the same text, in a target that names keys of dicts by text.
//
// Pure.
#pragma once

#include <cairn/result.h>

#include "convert/convert_plan.h"

namespace cairn::checkpointer {

// A file of torch.save names a key by its text and type if another key of the dict has the same text (`1` and '1':
// "1:int" and "1", state_flattening.cc). kInvalidArgument if the plan has both. Without the other key, the key gets its
// text as its name, as in a dict that never had the other key.
Result<void> settle_twins(ConvertPlan& plan);

}  // namespace cairn::checkpointer
