#include "repair/found_saves.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "commit/dcp_names.h"
#include "commit/lease.h"
#include "commit/save_ticket.h"
#include "format/manifest/trailer.h"
#include "storage/staleness.h"

namespace cairn::checkpointer {
namespace {

constexpr std::uint64_t kNamesMax = 1000;

class SaveFinder {
 public:
  explicit SaveFinder(const storage::Storage& storage) : storage_(storage) {}

  Result<void> add(const std::string& name) {
    const Result<std::unique_ptr<storage::ReadableFile>> file = storage_.open(name, false);
    if (!file && storage::is_absent(file.error())) return {};  // removed since the directory was listed
    if (!file) return Error(file.error()).file(name);
    const Result<std::optional<manifest::Trailer>> trailer = manifest::read_trailer(**file);
    if (trailer && *trailer) {
      add_file(name, (*file)->size(), **trailer);
    } else {
      CAIRN_TRY(add_damaged(name, **file, trailer));
    }
    return {};
  }

  FoundSaves take(const std::vector<storage::ListedFile>& listed) && {
    for (const storage::ListedFile& entry : listed) {
      const auto id = entry.is_folder ? commit::save_id_of_folder(entry.name) : std::nullopt;
      const auto found = id ? places_.find(key_of(*id)) : places_.end();
      if (found != places_.end()) found_.saves[found->second].is_leftover = true;
    }
    for (SaveFiles& save : found_.saves) check_numbers(save);
    for (auto& [name, error] : damaged_) attribute(name, std::move(error));
    return std::move(found_);
  }

 private:
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  static Key key_of(const SaveId& id) { return {id.high, id.low}; }

  void add_file(const std::string& name, std::uint64_t size, const manifest::Trailer& trailer) {
    const auto [place, is_new] = places_.emplace(key_of(trailer.save_id()), found_.saves.size());
    if (is_new) found_.saves.push_back({trailer.save_id(), {}});
    SaveFiles& save = found_.saves[place->second];
    save.files.push_back({name, trailer.rank(), trailer.file_number(), size, trailer.checksum()});
    if (trailer.file_count() == 0) return;
    if (!save.expected) save.expected = trailer.file_count();
    if (save.expected == trailer.file_count()) return;
    save.problems.push_back(Error(ErrorCode::kCorrupt, "two data files of a save name different numbers of files")
                                .file(name)
                                .expected(std::to_string(*save.expected))
                                .actual(std::to_string(trailer.file_count())));
  }

  Result<void> add_damaged(const std::string& name, const storage::ReadableFile& file,
                           const Result<std::optional<manifest::Trailer>>& trailer) {
    if (!trailer) {
      // A file that can't be read now may be intact: nothing may be concluded from it.
      const ErrorCode code = trailer.error().code();
      if (code != ErrorCode::kCorrupt) return Error(trailer.error()).file(name);
      damaged_.emplace_back(name, Error(trailer.error()).file(name));
      return {};
    }
    ++found_.without_trailer;
    damaged_.emplace_back(name, Error(ErrorCode::kCorrupt,
                                      "the data file does not end in a trailer: it is cut short, "
                                      "or stock torch wrote it")
                                    .file(name)
                                    .offset(file.size())
                                    .expected("a trailer of Cairn at the end")
                                    .actual("a file of " + std::to_string(file.size()) + " bytes without a trailer"));
    return {};
  }

  // A copy of a file under another name would give each of its items a second place.
  static void check_numbers(SaveFiles& save) {
    const auto number_of = [](const FoundFile& file) { return std::tuple(file.rank, file.number); };
    std::ranges::sort(save.files, [&](const FoundFile& a, const FoundFile& b) {
      return std::tuple(a.rank, a.number, a.name) < std::tuple(b.rank, b.number, b.name);
    });
    for (std::size_t i = 1; i < save.files.size(); ++i) {
      if (number_of(save.files[i - 1]) != number_of(save.files[i])) continue;
      save.problems.push_back(
          Error(ErrorCode::kCorrupt, "two data files have one rank, number and save: remove the copy")
              .file(save.files[i].name)
              .expected("another number than that of '" + save.files[i - 1].name + "'")
              .actual("file " + std::to_string(save.files[i].number) + " of rank " +
                      std::to_string(save.files[i].rank)));
    }
  }

  // A name with a save's id names the save. A file with a name of a first save may be of any.
  void attribute(const std::string& name, Error error) {
    for (SaveFiles& save : found_.saves) {
      if (name.find(to_decimal(save.save_id)) == std::string::npos) continue;
      save.problems.push_back(std::move(error));
      return;
    }
    found_.unknown.push_back(std::move(error));
  }

  const storage::Storage& storage_;
  FoundSaves found_;
  std::map<Key, std::size_t> places_;  // in found_.saves
  std::vector<std::pair<std::string, Error>> damaged_;
};

}  // namespace

bool SaveFiles::is_of_rank(std::uint32_t rank) const {
  return std::ranges::all_of(files, [rank](const FoundFile& file) { return file.rank == rank; });
}

Result<FoundSaves> find_saves(const storage::Storage& storage, const FileNames& ignored,
                              const std::function<bool()>& interrupted) {
  CAIRN_TRY_ASSIGN(const std::vector<storage::ListedFile> listed, storage.list());
  SaveFinder finder(storage);
  for (const storage::ListedFile& file : listed) {
    if (!file.is_regular || !commit::is_data_file_name(file.name) || ignored.contains(file.name)) continue;
    if (interrupted && interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while the data files were examined");
    }
    CAIRN_TRY(finder.add(file.name));
  }
  return std::move(finder).take(listed);
}

std::vector<std::string> names_of_missing(const SaveFiles& save) {
  if (save.files.empty() || !save.expected || *save.expected <= save.files.size()) return {};
  const std::uint64_t missing = std::min(*save.expected - save.files.size(), kNamesMax);
  std::set<std::pair<std::uint32_t, std::uint32_t>> present;
  std::uint32_t number_max = 0;
  for (const FoundFile& file : save.files) {
    present.emplace(file.rank, file.number);
    number_max = std::max(number_max, file.number);
  }
  const bool is_fresh = save.files.front().name.find(to_decimal(save.save_id)) == std::string::npos;
  const commit::SaveTicket ticket{{save.save_id, {}, 0}, is_fresh};
  std::vector<std::string> names;
  // The gaps, then, of ranks with a file each, the ranks behind the last. With several files for each rank the numbers
  // do not show which ranks have how many.
  const std::uint32_t rank_max = save.files.back().rank;
  for (std::uint32_t rank = 0; names.size() < missing; ++rank) {
    if (rank > rank_max && number_max > 0) break;
    const auto first = present.lower_bound({rank, 0});
    const bool has_files = first != present.end() && first->first == rank;
    const auto behind = present.upper_bound({rank, UINT32_MAX});
    const std::uint32_t last = has_files ? std::prev(behind)->second : 0;
    for (std::uint32_t number = 0; number <= last && names.size() < missing; ++number) {
      if (!present.contains({rank, number})) names.push_back(commit::data_file_name(ticket, rank, number));
      if (number == UINT32_MAX) break;
    }
  }
  return names;
}

}  // namespace cairn::checkpointer
