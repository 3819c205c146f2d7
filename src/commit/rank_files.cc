#include "commit/rank_files.h"

#include <cerrno>
#include <exception>

#include "commit/leftovers.h"
#include "commit/private_folder.h"

namespace cairn::commit {

void withdraw_files(storage::Storage& storage, const std::vector<std::string>& names, const SaveId& save_id) {
  // A first save uses DCP's plain names. A foreign file may have a plain name, and the collision may be the reason for
  // the withdrawal.
  std::vector<std::string> mine;
  for (const std::string& name : names) {
    if (belongs_to(storage, name, save_id)) mine.push_back(name);
  }
  if (!mine.empty()) (void)storage.remove_all(mine);
}

RankFiles::~RankFiles() {
  if (handed_over_) return;
  try {
    withdraw();
  } catch (const std::exception&) {
    // Out of memory: the next save removes the leftovers, as after a kill.
  }
}

Result<std::string> RankFiles::private_name(const std::string& file_name) {
  if (!storage_.has_rename()) {
    published_.push_back(file_name);
    return file_name;
  }
  if (!has_folder_) {
    Result<Lease> lease = Lease::take_with_folder(storage_, identity_);
    if (!lease && lease.error().error_number() != EEXIST) return std::move(lease).error();
    if (!lease) CAIRN_TRY(storage_.join_folder(folder_of_save(identity_)));
    if (lease) lease_ = std::move(*lease);
    has_folder_ = true;
  }
  return folder_of_save(identity_) + "/" + file_name;
}

Result<void> RankFiles::publish(const std::vector<std::string>& file_names, Durability durability) {
  if (!storage_.has_rename()) return {};
  for (const std::string& name : file_names) {  // (3)
    // Before the rename: a failed rename may still have given the file its name.
    published_.push_back(name);
    CAIRN_TRY(storage_.publish(folder_of_save(identity_) + "/" + name, name));
  }
  if (durability == Durability::kDurable) CAIRN_TRY(storage_.sync());
  return {};
}

void RankFiles::withdraw() {
  withdraw_files(storage_, published_, identity_.save_id);
  remove_own_folder();
}

void RankFiles::remove_own_folder() {
  if (!lease_) return;
  lease_.reset();
  std::vector<std::string> ignored;  // the next save into the directory removes the rest
  remove_private_folder(storage_, folder_of_save(identity_), ignored);
}

}  // namespace cairn::commit
