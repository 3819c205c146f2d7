// FileSet: the entries "cairn_save_id" and "cairn_set" of a header's metadata: the save that wrote a file, and the
// other files that the save wrote.
//
// Pure; the texts are untrusted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cairn::safetensors {

inline constexpr std::string_view kFileSetName = "cairn_set";

struct FileSet {
  enum class Kind : std::uint8_t {
    kAlone,    // the file is a whole model: "alone"
    kIndexed,  // `model.safetensors.index.json` names the files of the model: "index of 3 files"
    kShards,   // the model is all files of the save, without an index: "shards in 3 files"
  };
  Kind kind = Kind::kAlone;
  std::uint32_t file_count = 1;

  friend bool operator==(const FileSet&, const FileSet&) = default;
};

std::string render_file_set(const FileSet& set);
// Nullopt for any text that render_file_set() does not return.
std::optional<FileSet> read_file_set(std::string_view text);

}  // namespace cairn::safetensors
