#include "commit/storage_clock.h"

#include <chrono>

namespace cairn::commit {

Result<double> StorageClock::now() const {
  if (asked_ != nullptr) return asked_->now();
  if (storage_ != nullptr && !storage_->has_rename()) return storage_->now();
  if (storage_ == nullptr) {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  Result<void> touched = storage_->touch(own_file_);
  const bool missing = !touched && touched.error().code() == ErrorCode::kNotFound;
  if (missing) touched = storage_->create_whole(own_file_, "", Durability::kBuffered);
  CAIRN_TRY(touched);
  Result<double> now = storage_->touched_at(own_file_);
  if (missing) (void)storage_->remove(own_file_);
  return now;
}

}  // namespace cairn::commit
