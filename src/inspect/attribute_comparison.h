// attribute_comparison: the attributes of tensors and of dicts in two files of torch.save, which no key has. Attributes
// that only one of the files has count if they name stored bytes.
#pragma once

#include <cairn/inspect.h>
#include <cairn/result.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "format/torch_file/state_file.h"

namespace cairn::checkpointer {

// The difference between the attributes of the tensors under a key of both files; nullopt if they are equal.
Result<std::optional<KeyDifference>> compare_tensor_attributes(const torch_file::StateFile& a,
                                                               const torch_file::StateFile& b, const std::string& key,
                                                               std::optional<double> tolerance);

// The differences between the attributes of the dicts, each under its dict's place and its own name, as Python names
// it: "model._metadata". kUnsupported, with that place, for attributes that no Value can express.
Result<std::vector<KeyDifference>> compare_dict_attributes(const torch_file::StateFile& a,
                                                           const torch_file::StateFile& b,
                                                           const std::function<bool(std::string_view)>& is_selected,
                                                           std::optional<double> tolerance);

}  // namespace cairn::checkpointer
