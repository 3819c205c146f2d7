#include <cairn/managed_run.h>

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
    return {};
  }

  Result<std::optional<std::vector<std::string>>> get(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> values;
    for (const std::string& key : keys) {
      const auto found = values_.find(key);
      if (found == values_.end()) return std::optional<std::vector<std::string>>();
      values.push_back(found->second);
    }
    return std::optional(std::move(values));
  }

  Result<void> remove(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    values_.erase(key);
    return {};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
};

}  // namespace

std::shared_ptr<RunStore> make_local_store() { return std::make_shared<LocalStore>(); }

}  // namespace cairn
