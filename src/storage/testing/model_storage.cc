#include "storage/testing/model_storage.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>

#include "storage/testing/view_storage.h"

namespace cairn::storage {
namespace {

std::string folder_part(std::string_view name) {
  const std::size_t slash = name.rfind('/');
  return std::string(slash == std::string_view::npos ? "" : name.substr(0, slash));
}

class ModelReadableFile final : public ReadableFile {
 public:
  explicit ModelReadableFile(std::string bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t size() const override { return bytes_.size(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    return MemorySource(std::as_bytes(std::span(bytes_))).read_at(offset, target);
  }
  std::optional<DirectAlignment> direct_alignment() const override { return std::nullopt; }
  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    return read_at(offset, target);
  }
  bool is_cached(std::uint64_t, std::uint64_t) const override { return true; }

 private:
  std::string bytes_;
};

}  // namespace

class ModelWritableFile final : public WritableFile {
 public:
  ModelWritableFile(ModelStorage& storage, std::shared_ptr<ModelStorage::File> file)
      : storage_(storage), file_(std::move(file)) {}

  std::size_t write_alignment() const override { return 1; }

  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> data) override {
    const std::lock_guard lock(storage_.mutex_);
    CAIRN_TRY(storage_.step());
    if (file_->bytes.size() < offset + data.size()) file_->bytes.resize(offset + data.size());
    std::memcpy(file_->bytes.data() + offset, data.data(), data.size());
    return {};
  }

  Result<void> finish(std::uint64_t size, Durability durability) override {
    const std::lock_guard lock(storage_.mutex_);
    CAIRN_TRY(storage_.step());
    file_->bytes.resize(size);
    if (durability == Durability::kDurable) file_->synced = file_->bytes;
    return {};
  }

 private:
  ModelStorage& storage_;
  std::shared_ptr<ModelStorage::File> file_;
};

class ModelLock final : public StorageLock {
 public:
  explicit ModelLock(ModelStorage& storage) : storage_(storage) {}
  ~ModelLock() override {
    const std::lock_guard lock(storage_.mutex_);
    if (storage_.step()) storage_.names_.erase(std::string(kLockName));
    storage_.locked_ = false;
    storage_.unlocked_.notify_one();
  }
  bool is_held() const override { return true; }

 private:
  ModelStorage& storage_;
};

Result<std::unique_ptr<StorageLock>> ModelStorage::lock() {
  std::unique_lock lock(mutex_);
  unlocked_.wait(lock, [this] { return !locked_; });
  CAIRN_TRY(step());
  names_.try_emplace(std::string(kLockName), std::make_shared<File>());
  locked_ = true;
  return std::unique_ptr<StorageLock>(std::make_unique<ModelLock>(*this));
}

std::uint64_t ModelStorage::operation_count() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

void ModelStorage::fail_at(std::uint64_t number, Error error) {
  const std::lock_guard lock(mutex_);
  fail_at_.emplace(number, std::move(error));
  fired_ = false;
}

void ModelStorage::crash_at(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  crash_at_ = number;
  fired_ = false;
}

bool ModelStorage::fault_fired() const {
  const std::lock_guard lock(mutex_);
  return fired_;
}

void ModelStorage::outlive_crash() {
  const std::lock_guard lock(mutex_);
  crash_at_.reset();
}

Result<void> ModelStorage::step() {
  const std::uint64_t number = operations_++;
  if (crash_at_ && number >= *crash_at_) {
    fired_ = true;
    return Error(ErrorCode::kUnavailable, "injected: the process or the power is gone");
  }
  if (fail_at_ && number == fail_at_->first) {
    fired_ = true;
    return fail_at_->second;
  }
  return {};
}

void ModelStorage::lose_power(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  std::mt19937_64 random(seed);
  std::set<std::string> all_names;
  for (const auto& [name, file] : names_) all_names.insert(name);
  for (const auto& [name, file] : synced_names_) all_names.insert(name);
  Names left;
  for (const std::string& name : all_names) {
    const Names& from = random() % 2 == 0 ? names_ : synced_names_;
    if (const auto found = from.find(name); found != from.end()) left.insert(*found);
  }
  // A file without its folder is unreachable.
  std::erase_if(left, [&left](const auto& item) {
    const std::string folder = folder_part(item.first);
    return !folder.empty() && !left.contains(folder);
  });
  for (auto& [name, file] : left) {
    if (file->synced) {
      file->bytes = *file->synced;
    } else if (random() % 2 == 0) {
      for (char& byte : file->bytes) byte = static_cast<char>(random());
    }
    file->synced = file->bytes;
  }
  names_ = left;
  synced_names_ = left;
  held_.clear();
  crash_at_.reset();
  fail_at_.reset();
}

void ModelStorage::become(const ModelStorage& other) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  std::map<const File*, std::shared_ptr<File>> copies;  // a file may have several names
  const auto copied = [&copies](const Names& names) {
    Names copy;
    for (const auto& [name, file] : names) {
      std::shared_ptr<File>& its = copies[file.get()];
      if (!its) its = std::make_shared<File>(*file);
      copy.emplace(name, its);
    }
    return copy;
  };
  names_ = copied(other.names_);
  synced_names_ = copied(other.synced_names_);
  ticks_ = other.ticks_;
}

std::string ModelStorage::description() const {
  const std::lock_guard lock(mutex_);
  std::string text = locked_ ? "locked" : "free";
  for (const Names* names : {&names_, &synced_names_}) {
    text += '\n';
    for (const auto& [name, file] : *names) {
      const bool is_lease = name.find("/lease") != std::string::npos;
      text += name + (file->is_folder ? "/" : "=") + (is_lease ? "" : file->bytes) + '\0';
      text += is_lease ? "" : file->synced.value_or("unknown") + '\0';
    }
  }
  return text;
}

std::unique_ptr<Storage> ModelStorage::view_of(ModelStorage& storage) { return std::make_unique<ViewStorage>(storage); }

Result<void> ModelStorage::make_folder(std::string_view name) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  auto folder = std::make_shared<File>();
  folder->is_folder = true;
  folder->synced = "";
  if (!names_.emplace(name, folder).second) return Error::from_errno(EEXIST, "making a folder");
  held_.insert_or_assign(std::string(name), std::move(folder));
  return {};
}

Result<void> ModelStorage::join_folder(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return Error::from_errno(ENOENT, "joining a folder").file(name);
  if (found->second->is_of_another_user) return Error(ErrorCode::kUnsafe, "a folder of another user").file(name);
  held_.insert_or_assign(std::string(name), found->second);
  return {};
}

Result<void> ModelStorage::check_held(std::string_view folder) const {
  const auto held = held_.find(folder);
  if (held == held_.end()) return {};
  const auto found = names_.find(folder);
  if (found == names_.end()) return Error::from_errno(ENOENT, "opening a folder").file(folder);
  if (found->second != held->second) return Error(ErrorCode::kUnsafe, "the folder was replaced").file(folder);
  return {};
}

void ModelStorage::give_away(const std::string& name) {
  const std::lock_guard lock(mutex_);
  names_.at(name)->is_of_another_user = true;
  held_.erase(name);
}

void ModelStorage::replace_folder(const std::string& name) {
  const std::lock_guard lock(mutex_);
  Names moved;
  for (auto& [old_name, file] : names_) {
    const bool inside = old_name == name || folder_part(old_name) == name;
    moved.insert_or_assign(inside ? "stolen" + old_name.substr(name.size()) : old_name, file);
  }
  names_ = std::move(moved);
  auto folder = std::make_shared<File>();
  folder->is_folder = true;
  folder->is_of_another_user = true;
  names_.insert_or_assign(name, std::move(folder));
}

Result<void> ModelStorage::remove_folder(std::string_view name) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  if (auto held = check_held(name); !held) {
    return held.error().code() == ErrorCode::kNotFound ? Result<void>() : held;
  }
  const bool full = std::ranges::any_of(names_, [&](const auto& item) { return folder_part(item.first) == name; });
  if (full) return Error::from_errno(ENOTEMPTY, "removing a folder");
  names_.erase(std::string(name));
  held_.erase(std::string(name));
  return {};
}

Result<std::unique_ptr<WritableFile>> ModelStorage::create(std::string_view name, const CreateOptions& options) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  CAIRN_TRY(check_held(folder_part(name)));
  auto file = std::make_shared<File>();
  file->bytes.resize(options.size);
  if (!names_.emplace(name, file).second) return Error::from_errno(EEXIST, "creating").file(name);
  return std::unique_ptr<WritableFile>(std::make_unique<ModelWritableFile>(*this, std::move(file)));
}

Result<void> ModelStorage::create_whole(std::string_view name, std::string_view bytes, Durability durability) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  CAIRN_TRY(check_held(folder_part(name)));
  auto file = std::make_shared<File>();
  file->bytes = bytes;
  if (durability == Durability::kDurable) file->synced = file->bytes;
  if (!names_.emplace(name, std::move(file)).second) return Error::from_errno(EEXIST, "creating").file(name);
  return {};
}

Result<std::unique_ptr<ReadableFile>> ModelStorage::open(std::string_view name, bool) const {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(check_held(folder_part(name)));
  const auto found = names_.find(name);
  if (found == names_.end() || found->second->is_folder) return Error::from_errno(ENOENT, "opening").file(name);
  return std::unique_ptr<ReadableFile>(std::make_unique<ModelReadableFile>(found->second->bytes));
}

Result<std::vector<ListedFile>> ModelStorage::list(std::string_view folder) const {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(check_held(folder));
  if (!folder.empty() && !names_.contains(folder)) return Error::from_errno(ENOENT, "listing").file(folder);
  std::vector<ListedFile> files;
  for (const auto& [name, file] : names_) {
    if (folder_part(name) != folder) continue;
    const std::string last = name.substr(folder.empty() ? 0 : folder.size() + 1);
    files.push_back({last, file->is_folder, !file->is_folder});
  }
  return files;
}

Result<void> ModelStorage::rename(std::string_view from, std::string_view to) {
  CAIRN_TRY(check_held(folder_part(from)));
  const auto found = names_.find(from);
  if (found == names_.end()) return Error::from_errno(ENOENT, "renaming").file(from);
  names_.insert_or_assign(std::string(to), found->second);
  names_.erase(std::string(from));
  return {};
}

Result<void> ModelStorage::publish(std::string_view from, std::string_view to) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  if (names_.contains(to)) return Error::from_errno(EEXIST, "publishing").file(to);
  return rename(from, to);
}

Result<void> ModelStorage::replace(std::string_view from, std::string_view to) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  return rename(from, to);
}

Result<void> ModelStorage::remove(std::string_view name) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  if (auto held = check_held(folder_part(name)); !held) {
    return held.error().code() == ErrorCode::kNotFound ? Result<void>() : held;
  }
  names_.erase(std::string(name));
  return {};
}

Result<void> ModelStorage::sync(std::string_view folder) {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(step());
  CAIRN_TRY(check_held(folder));
  std::erase_if(synced_names_, [&](const auto& item) { return folder_part(item.first) == folder; });
  for (const auto& item : names_) {
    if (folder_part(item.first) == folder) synced_names_.insert(item);
  }
  return {};
}

Result<void> ModelStorage::rewrite(std::string_view name, std::string_view bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return Error::from_errno(ENOENT, "opening").file(name);
  std::string& content = found->second->bytes;
  content.replace(0, std::min(bytes.size(), content.size()), bytes);
  found->second->touched_at = tick();
  return {};
}

Result<void> ModelStorage::touch(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto found = names_.find(name);
  if (found == names_.end()) return Error::from_errno(ENOENT, "touching").file(name);
  found->second->touched_at = tick();
  return {};
}

Result<double> ModelStorage::touched_at(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  CAIRN_TRY(check_held(name));
  CAIRN_TRY(check_held(folder_part(name)));
  if (name.empty()) return 0.0;
  const auto found = names_.find(name);
  if (found == names_.end()) return Error::from_errno(ENOENT, "reading the attributes").file(name);
  return found->second->touched_at;
}

}  // namespace cairn::storage
