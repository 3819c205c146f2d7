// The check that tensors are in the memory of the CPU, for code that reads or writes tensors by address.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <span>
#include <string_view>

namespace cairn {

// kUnsupported for a tensor in the memory of another device; the error names the key and the device.
Result<void> expect_host_tensor(const TensorView& tensor, std::string_view key);
// The error of the first such tensor among the entries.
Result<void> expect_host_tensors(std::span<const Entry> entries);

}  // namespace cairn
