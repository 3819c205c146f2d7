// Index: model.safetensors.index.json, which names the file of each tensor of a model in several safetensors files.
//
// Values and pure functions, safe from any thread. An index is untrusted: the files that it names may be missing, may
// lack the tensor, or may be names that leave the directory.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cairn::safetensors {

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";

struct Index {
  std::vector<std::pair<std::string, std::string>> files;  // by tensor, in the index's order: each tensor once
  std::string save_id;  // of "cairn_save_id", a member of Cairn's own; empty if the index lacks the member
  // Of "metadata": names and JSON texts, without "total_size". Empty if "metadata" is no object.
  std::vector<std::pair<std::string, std::string>> metadata = {};
};

// Reads "weight_map", "metadata" and "cairn_save_id" and skips all other members. kCorrupt for a text that is not JSON,
// lacks "weight_map", or names a tensor twice.
Result<Index> read_index(std::string_view text);

// As Hugging Face's writers render it: "metadata" has "total_size", which is `tensor_bytes`, and `index.metadata`.
// "cairn_save_id" is left out if `index.save_id` is empty.
Result<std::string> render_index(const Index& index, std::uint64_t tensor_bytes);

}  // namespace cairn::safetensors
