// ModelMetadata: the metadata that other programs put into a safetensors model: the entries of "__metadata__" in the
// headers, and the members of "metadata" in the index.
//
// A value; safe from any thread.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/safetensors/header.h"

namespace cairn::checkpointer {

// The member of an index's "metadata" that counts the elements of all tensors.
inline constexpr std::string_view kTotalParametersName = "total_parameters";

struct ModelMetadata {
  // Without the entries of Cairn and of torch, which describe a single save ("cairn_...", "DCP_...").
  std::map<std::string, std::string, std::less<>> entries;
  // Entries that differ between two files; `entries` has the value of the first file.
  std::set<std::string, std::less<>> conflicts;
  // The values are JSON texts. Without "total_size".
  std::vector<std::pair<std::string, std::string>> of_index;

  // Adds the entries of the next file.
  void add(const safetensors::Header& header);
};

}  // namespace cairn::checkpointer
