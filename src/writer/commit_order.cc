#include "writer/commit_order.h"

#include <filesystem>
#include <system_error>
#include <utility>

namespace cairn::writer {

CommitOrder::Turn::Turn(std::shared_ptr<Directories> directories, std::string directory)
    : directories_(std::move(directories)), directory_(std::move(directory)) {
  const std::lock_guard lock(directories_->mutex);
  number_ = directories_->next++;
  directories_->under_way[directory_].insert(number_);
}

CommitOrder::Turn::~Turn() {
  const std::lock_guard lock(directories_->mutex);
  const auto found = directories_->under_way.find(directory_);
  found->second.erase(number_);
  if (found->second.empty()) directories_->under_way.erase(found);
  directories_->left.notify_all();
}

void CommitOrder::Turn::wait() const {
  std::unique_lock lock(directories_->mutex);
  directories_->left.wait(lock, [this] { return *directories_->under_way.at(directory_).begin() == number_; });
}

std::unique_ptr<CommitOrder::Turn> CommitOrder::enter(const std::string& directory) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(directory, error);
  return std::make_unique<Turn>(directories_, error ? directory : real.string());
}

}  // namespace cairn::writer
