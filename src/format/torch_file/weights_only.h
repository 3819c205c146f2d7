// What torch.load(weights_only=True) reads although the pickle of the value names a class or function
// (torch/_weights_only_unpickler.py): calls that torch allows, because no argument makes them run code of the file.
//
// Pure.
#pragma once

#include <cairn/state_dict.h>

#include <string>

namespace cairn::torch_file {

// The qualified name of the first Object in `value` that is no such call; empty if there is none: encode_value() then
// writes the value, and weights_only=True reads it. The calls are torch.Size, torch.device, dtypes, layouts and
// quantisation schemes of torch, collections.Counter, an OrderedDict with attributes, bytearray, a parameter, and a
// tensor that requires a gradient. NumPy arrays count as plain data, although weights_only=True needs
// torch.serialization.add_safe_globals for them.
std::string first_refused_class(const Value& value);

// The tensor, if `object` is a tensor that requires a gradient, as decode_value() returns it; null otherwise.
const Array* tensor_requiring_grad(const Object& object);

}  // namespace cairn::torch_file
