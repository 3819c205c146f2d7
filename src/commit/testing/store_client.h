// StoreClient: a process's connection to a shared object store, which dies, loses answers or pauses at chosen requests.
// For tests.
//
// One thread at a time, except for the counts. Requests are counted from 0.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "storage/bucket/object_store.h"

namespace cairn::commit {

class StoreClient final : public storage::ObjectStore {
 public:
  using WriteOutcome = storage::WriteOutcome;
  using WriteCondition = storage::WriteCondition;
  enum class Death : std::uint8_t { kBefore, kAfter };

  explicit StoreClient(std::shared_ptr<storage::ObjectStore> shared) : shared_(std::move(shared)) {}

  // The request and all later requests fail; kAfter: the request still acts.
  void die_at(std::uint64_t request, Death death) {
    dies_at_ = request;
    death_ = death;
  }
  // The request acts, and the client sends it again.
  void lose_answer_at(std::uint64_t request) { loses_answer_at_ = request; }
  // The conditional write ends with kUnknown; `late`: land() carries it out, otherwise it never acts.
  void leave_unknown_at(std::uint64_t request) { unknown_at_ = request; }
  void land() {
    for (const auto& act : std::exchange(late_, {})) act();
  }
  // Calls `act` before the request: another process acts while this process pauses.
  void pause_at(std::uint64_t request, std::function<void()> act) { pauses_[request] = std::move(act); }
  // Calls `act` before each conditional write of the key.
  void pause_at_write(std::string key, std::function<void()> act) {
    pause_key_ = std::move(key);
    at_write_ = std::move(act);
  }
  std::uint64_t count() const { return count_; }
  bool is_dead() const { return dead_; }

  Result<storage::ObjectVersion> describe(std::string_view key) override {
    return request<storage::ObjectVersion>([&] { return shared_->describe(key); });
  }
  Result<storage::ObjectVersion> read(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                                      std::string_view tag) override {
    return request<storage::ObjectVersion>([&] { return shared_->read(key, offset, target, tag); });
  }
  Result<Content> read_whole(std::string_view key, std::uint64_t bytes_max) override {
    return request<Content>([&] { return shared_->read_whole(key, bytes_max); });
  }
  Result<WriteOutcome> write(std::string_view key, std::span<const std::byte> bytes,
                             const WriteCondition& condition) override {
    if (at_write_ && key.ends_with(pause_key_)) std::exchange(at_write_, nullptr)();
    const std::uint64_t number = count_;
    const bool has_condition = condition.kind != WriteCondition::Kind::kNone;
    if (number == unknown_at_ && has_condition && !dead_) {
      ++count_;
      late_.push_back([this, key = std::string(key), text = std::vector(bytes.begin(), bytes.end()), condition] {
        (void)shared_->write(key, text, condition);
      });
      return WriteOutcome{WriteOutcome::Kind::kUnknown, "", true, Error(ErrorCode::kUnavailable, "no answer")};
    }
    return conditional(number, has_condition, [&] { return shared_->write(key, bytes, condition); });
  }
  Result<std::string> begin_upload(std::string_view key) override {
    return request<std::string>([&] { return shared_->begin_upload(key); });
  }
  Result<storage::UploadedPart> upload_part(std::string_view key, std::string_view upload_id, std::uint32_t number,
                                            std::span<const std::span<const std::byte>> pieces) override {
    return request<storage::UploadedPart>([&] { return shared_->upload_part(key, upload_id, number, pieces); });
  }
  Result<storage::ObjectVersion> complete_upload(std::string_view key, std::string_view upload_id,
                                                 std::span<const storage::UploadedPart> parts,
                                                 std::uint64_t size) override {
    return request<storage::ObjectVersion>([&] { return shared_->complete_upload(key, upload_id, parts, size); });
  }
  Result<void> abort_upload(std::string_view key, std::string_view upload_id) override {
    return request<void>([&] { return shared_->abort_upload(key, upload_id); });
  }
  Result<std::vector<storage::PendingUpload>> pending_uploads(std::string_view prefix) override {
    return request<std::vector<storage::PendingUpload>>([&] { return shared_->pending_uploads(prefix); });
  }
  Result<std::vector<storage::UploadedPart>> uploaded_parts(std::string_view key, std::string_view id) override {
    return request<std::vector<storage::UploadedPart>>([&] { return shared_->uploaded_parts(key, id); });
  }
  Result<void> remove(std::string_view key) override {
    return request<void>([&] { return shared_->remove(key); });
  }
  Result<void> remove_all(std::span<const std::string> keys) override {
    return request<void>([&] { return shared_->remove_all(keys); });
  }
  Result<WriteOutcome> remove_if(std::string_view key, const std::string& tag) override {
    return conditional(count_, true, [&] { return shared_->remove_if(key, tag); });
  }
  Result<storage::ObjectPage> list(std::string_view prefix, bool by_folder, std::string_view next,
                                   std::uint32_t count_max) override {
    return request<storage::ObjectPage>([&] { return shared_->list(prefix, by_folder, next, count_max); });
  }
  Result<double> now() override { return shared_->now(); }  // no request: the date of the last answer

 private:
  static Error lost() { return {ErrorCode::kUnavailable, "the process is dead"}; }

  // Whether the request acts; then calls acted().
  bool begin() {
    const std::uint64_t number = count_++;
    if (const auto pause = pauses_.find(number); pause != pauses_.end()) std::exchange(pause->second, [] {})();
    if (number >= dies_at_) {
      const bool acts = !dead_.exchange(true) && number == dies_at_ && death_ == Death::kAfter;
      return acts;
    }
    return true;
  }
  template <typename T>
  Result<T> request(const std::function<Result<T>()>& act) {
    const std::uint64_t number = count_;
    if (!begin()) return lost();
    Result<T> answer = act();
    if (dead_) return lost();
    if (number == loses_answer_at_) return act();
    return answer;
  }
  Result<WriteOutcome> conditional(std::uint64_t number, bool has_condition,
                                   const std::function<Result<WriteOutcome>()>& act) {
    if (!begin()) return lost();
    Result<WriteOutcome> answer = act();
    if (dead_) return lost();
    if (number == loses_answer_at_) {
      answer = act();
      if (answer && has_condition) answer->answer_was_lost = true;
    }
    return answer;
  }

  static constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();
  std::shared_ptr<storage::ObjectStore> shared_;  // with the other clients and the test
  std::atomic<std::uint64_t> count_ = 0;
  std::atomic<bool> dead_ = false;
  std::uint64_t dies_at_ = kNever;
  Death death_ = Death::kBefore;
  std::uint64_t loses_answer_at_ = kNever;
  std::uint64_t unknown_at_ = kNever;
  std::vector<std::function<void()>> late_;
  std::map<std::uint64_t, std::function<void()>> pauses_;
  std::string pause_key_;
  std::function<void()> at_write_;
};

}  // namespace cairn::commit
