#include "listing.h"

#include <cairn/checkpoint.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "catalog_text.h"
#include "printable.h"

namespace cairn::cli {
namespace {

namespace fs = std::filesystem;

bool has_metadata(const fs::path& directory) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(directory / ".metadata", ignored));
}

// Whether a save began here: data files, or the private folder of one.
bool has_pieces(const fs::path& directory) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.starts_with(".cairn-") || name.ends_with(".distcp")) return true;
  }
  return false;
}

Outcome list_keys(const fs::path& directory) {
  const Result<Checkpoint> checkpoint = open(directory);
  if (!checkpoint) return {{}, message_of(checkpoint.error()), ExitCode::kUnreadable};
  const Catalog& catalog = checkpoint->catalog();
  Outcome outcome;
  for (const Catalog::KeyRef& key : catalog.keys) {
    if (key.is_tensor) {
      const CatalogTensor& tensor = catalog.tensors[key.index];
      fmt::format_to(std::back_inserter(outcome.data), "{:<28} {:>10}  {}\n", kind_text(tensor),
                     byte_text(tensor_bytes(tensor)), printable(tensor.fqn));
    } else {
      fmt::format_to(std::back_inserter(outcome.data), "{:<28} {:>10}  {}\n", "value", "",
                     printable(catalog.values[key.index].fqn));
    }
  }
  return outcome;
}

void list_checkpoint(const fs::path& directory, Outcome& outcome) {
  const std::string name = printable(directory.filename().string());
  std::string text = "incomplete: no .metadata";
  if (has_metadata(directory)) {
    if (const Result<Checkpoint> checkpoint = open(directory)) {
      text = summary_of(checkpoint->catalog());
    } else {
      text = "unreadable";
      outcome.messages += message_of(checkpoint.error());
      outcome.exit_code = ExitCode::kUnreadable;
    }
  }
  fmt::format_to(std::back_inserter(outcome.data), "{:<24} {}\n", name, text);
}

Outcome list_checkpoints(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored)) continue;
    if (has_metadata(entry->path()) || has_pieces(entry->path())) found.push_back(entry->path());
  }
  const auto failed = [&folder](Error problem) {
    Error whole = std::move(problem).while_doing("listing '" + folder.string() + "'");
    return Outcome{{}, message_of(whole), ExitCode::kUnreadable};
  };
  if (error) return failed(Error::from_errno(error.value(), error.message()));
  if (found.empty()) return failed(Error(ErrorCode::kNotFound, "neither a checkpoint nor a folder of checkpoints"));
  std::sort(found.begin(), found.end());
  Outcome outcome;
  for (const fs::path& directory : found) list_checkpoint(directory, outcome);
  return outcome;
}

}  // namespace

Outcome list(const fs::path& directory) {
  return has_metadata(directory) ? list_keys(directory) : list_checkpoints(directory);
}

}  // namespace cairn::cli
