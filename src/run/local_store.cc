#include <cairn/managed_run.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

namespace cairn {
namespace {

class LocalStore : public RunStore {
 public:
  Result<void> set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return {};
  }

  Result<std::optional<std::vector<std::string>>> wait(const std::vector<std::string>& keys,
                                                       std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    const auto are_set = [&] {
      return std::all_of(keys.begin(), keys.end(), [&](const std::string& key) { return values_.contains(key); });
    };
    if (!changed_.wait_for(lock, timeout, are_set)) return std::optional<std::vector<std::string>>();
    std::vector<std::string> values;
    for (const std::string& key : keys) values.push_back(values_[key]);
    return std::optional(std::move(values));
  }

  Result<void> remove(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace

std::shared_ptr<RunStore> make_local_store() { return std::make_shared<LocalStore>(); }

}  // namespace cairn
