#include "repair/save_choice.h"

#include <algorithm>
#include <unordered_map>

namespace cairn::checkpointer {
namespace {

constexpr std::size_t kSavesNamed = 8;

std::string described(const SaveFiles& save) {
  std::string text = "save " + to_hex(save.save_id) + " with " + std::to_string(save.files.size());
  if (save.expected) text += " of " + std::to_string(*save.expected);
  text += " data files, the first '" + save.files.front().name + "'";
  if (save.is_leftover) text += ", which has not ended";
  return text;
}

std::string described(const std::vector<const SaveFiles*>& saves) {
  std::string text;
  for (std::size_t i = 0; i < std::min(saves.size(), kSavesNamed); ++i)
    text += (i == 0 ? "" : "; ") + described(*saves[i]);
  if (saves.size() > kSavesNamed) text += "; and " + std::to_string(saves.size() - kSavesNamed) + " more";
  return text;
}

Error no_save(const FoundSaves& found, const std::vector<const SaveFiles*>& leftovers) {
  if (!leftovers.empty()) {
    return Error(ErrorCode::kNotFound,
                 "only saves that have not ended have data files here: name the save to make it the checkpoint (option "
                 "save), or remove its files (cairn clean)")
        .actual(described(leftovers));
  }
  if (found.without_trailer != 0) {
    return Error(
        ErrorCode::kUnsupported,
        "the data files have no trailers, from which the metadata could be rebuilt: stock torch wrote them, or "
        "they are cut short");
  }
  return {ErrorCode::kNotFound, "no data file has an intact trailer, from which the metadata could be rebuilt"};
}

const SaveFiles* find(const std::vector<const SaveFiles*>& saves, const SaveId& id) {
  const auto found = std::ranges::find(saves, id, [](const SaveFiles* save) { return save->save_id; });
  return found == saves.end() ? nullptr : *found;
}

SaveChoice choose_among(const std::vector<const SaveFiles*>& ended) {
  if (ended.size() == 1) return {ended.front()};
  std::vector<const SaveFiles*> whole;
  std::ranges::copy_if(ended, std::back_inserter(whole), [](const SaveFiles* save) { return save->has_all_files(); });
  if (whole.size() == 1) return {whole.front()};
  return {nullptr,
          {Error(ErrorCode::kInvalidArgument,
                 "the data files are of several saves: name the save to make it the checkpoint (option save); if each "
                 "rank saved alone, name the rank (option rank)")
               .actual(described(ended))}};
}

}  // namespace

SaveChoice choose_save(const FoundSaves& found, const MetadataState& state, const WantedSave& wanted) {
  std::vector<const SaveFiles*> saves;
  for (const SaveFiles& save : found.saves) {
    if (!wanted.rank || save.is_of_rank(*wanted.rank)) saves.push_back(&save);
  }
  if (wanted.id) {
    const SaveFiles* const named = find(saves, *wanted.id);
    if (named != nullptr) return {named};
    return {nullptr, {Error(ErrorCode::kNotFound, "no data file here is of the save").expected(to_hex(*wanted.id))}};
  }
  std::vector<const SaveFiles*> ended;
  std::ranges::copy_if(saves, std::back_inserter(ended), [](const SaveFiles* save) { return !save->is_leftover; });
  if (state.record) {
    if (const SaveFiles* const recorded = find(saves, state.record->save_id)) return {recorded};
  }
  if (ended.empty()) return {nullptr, {no_save(found, saves)}};
  return choose_among(ended);
}

MissingFiles missing_files_of(const SaveFiles& save, const std::optional<manifest::CommitRecord>& record) {
  // Partial metadata does not name all files of its save.
  const bool is_recorded = record && record->save_id == save.save_id && !is_partial(*record);
  if (!is_recorded) {
    if (!save.expected) return {0, {}, false};
    const std::uint64_t count = *save.expected - std::min<std::uint64_t>(*save.expected, save.files.size());
    return {count, names_of_missing(save)};
  }
  std::unordered_map<std::string_view, const FoundFile*, SeededHash> found;
  for (const FoundFile& file : save.files) found.emplace(file.name, &file);
  MissingFiles missing;
  for (const manifest::CommitRecord::File& file : record->files) {
    const auto here = found.find(file.name);
    const bool is_same = here != found.end() && here->second->size == file.size &&
                         here->second->trailer_checksum == file.trailer_checksum;
    if (!is_same) missing.names.push_back(file.name);
  }
  missing.count = missing.names.size();
  return missing;
}

}  // namespace cairn::checkpointer
