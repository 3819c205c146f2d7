// MemoryObjectStore: an object store in memory, with a clock that a test sets, and with faults on request. For tests.
//
// Stricter than a real store: every write gives a new tag, also of equal bytes; a part's size, number and tag are
// checked; an answer has whole seconds; a page of a listing may be short. A fault gives the outcome that a client
// reports after its retries.
//
// Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/bucket/object_store.h"

namespace cairn::storage {

class MemoryObjectStore final : public ObjectStore {
 public:
  enum class Call : std::uint8_t {
    kDescribe,
    kRead,
    kReadWhole,
    kWrite,
    kBeginUpload,
    kUploadPart,
    kCompleteUpload,
    kAbortUpload,
    kPendingUploads,
    kUploadedParts,
    kRemove,
    kRemoveAll,
    kRemoveIf,
    kList,
    kNow,
  };
  static constexpr std::size_t kCallKinds = 15;

  enum class Fault : std::uint8_t {
    kFails,       // kUnavailable, without an effect
    kLostAnswer,  // the call acts, its answer is lost, and the client repeats the call
    // A conditional write ends with kUnknown, all else with kUnavailable. The call has acted; has not acted and never
    // will; acts when the test calls land_late_calls().
    kUnknownDone,
    kUnknownNotDone,
    kUnknownLate,
  };

  // The number of calls since the construction, of a kind or of all kinds. A batch, a page and a part count as one.
  std::uint64_t call_count(Call call) const;
  std::uint64_t call_count() const;
  // Of all kinds but describe, read, read_whole, list, pending_uploads, uploaded_parts and now.
  std::uint64_t change_count() const;

  // The call `number` (from 0, since the construction) of the kind has the fault.
  void set_fault(Call call, std::uint64_t number, Fault fault);
  // The changing call `number` (from 0) of any kind has the fault.
  void set_fault_of_change(std::uint64_t number, Fault fault);
  // The changing call `number` and all later calls fail: the process was killed before the call acted. Until
  // outlive_crash().
  void crash_at(std::uint64_t number);
  void outlive_crash();
  bool fault_fired() const;
  // The late calls act now, in their order; a condition is judged now.
  void land_late_calls();
  // Called before each call, without a lock held: a second writer may act through the store.
  void set_before_call(std::function<void(Call call, std::string_view key)> before);

  // A store that ignores the conditions of writes and removals, as some do.
  void ignore_conditions();
  // At most `count` names in a page.
  void set_page(std::uint32_t count);
  // The clock of the store, in seconds since the epoch. Answers have whole seconds, rounded down.
  void set_clock(double seconds);
  void advance_clock(double seconds);

  // All objects, by key. Without a count.
  std::map<std::string, std::string> contents() const;
  // Puts an object in place, or removes an object, as another program does: without a fault and without a count.
  void put(const std::string& key, std::string bytes);
  void drop(const std::string& key);
  // The number of uploads that were begun and neither completed nor aborted.
  std::size_t upload_count() const;
  // The objects, the uploads and the clock of `other`, in place of this store's; no faults. Counts begin at 0.
  void become(const MemoryObjectStore& other);

  Result<ObjectVersion> describe(std::string_view key) override;
  Result<ObjectVersion> read(std::string_view key, std::uint64_t offset, std::span<std::byte> target,
                             std::string_view tag) override;
  Result<Content> read_whole(std::string_view key, std::uint64_t bytes_max) override;
  Result<WriteOutcome> write(std::string_view key, std::span<const std::byte> bytes,
                             const WriteCondition& condition) override;
  Result<std::string> begin_upload(std::string_view key) override;
  Result<UploadedPart> upload_part(std::string_view key, std::string_view upload_id, std::uint32_t number,
                                   std::span<const std::span<const std::byte>> pieces) override;
  Result<ObjectVersion> complete_upload(std::string_view key, std::string_view upload_id,
                                        std::span<const UploadedPart> parts, std::uint64_t size) override;
  Result<void> abort_upload(std::string_view key, std::string_view upload_id) override;
  Result<std::vector<PendingUpload>> pending_uploads(std::string_view prefix) override;
  Result<std::vector<UploadedPart>> uploaded_parts(std::string_view key, std::string_view upload_id) override;
  Result<void> remove(std::string_view key) override;
  Result<void> remove_all(std::span<const std::string> keys) override;
  Result<WriteOutcome> remove_if(std::string_view key, const std::string& tag) override;
  Result<ObjectPage> list(std::string_view prefix, bool by_folder, std::string_view next,
                          std::uint32_t count_max) override;
  Result<double> now() override;

 private:
  struct Object {
    std::string bytes;
    ObjectVersion version;
  };
  struct Part {
    std::string bytes;
    UploadedPart answer;
  };
  struct Upload {
    std::string key;
    double begun_at = 0;
    std::map<std::uint32_t, Part> parts;
  };
  using Objects = std::map<std::string, Object, std::less<>>;
  using Uploads = std::map<std::string, Upload, std::less<>>;
  using Lock = std::unique_lock<std::mutex>;

  static bool changes(Call call);
  // Counts the call, and returns its fault.
  Result<std::optional<Fault>> begin(Call call, std::string_view key);
  // Carries out a call with an effect by `act`, under its fault. The late calls act by `act`, too.
  template <typename T>
  Result<T> carry_out(Call call, std::string_view key, std::function<Result<T>()> act);
  Result<WriteOutcome> carry_out_condition(Call call, std::string_view key, std::function<Result<WriteOutcome>()> act);
  double seconds() const;
  std::string new_tag();
  ObjectVersion put_locked(const std::string& key, std::string bytes);
  bool holds(std::string_view key, const WriteCondition& condition) const;
  Result<Upload*> upload_of(std::string_view key, std::string_view upload_id);

  mutable std::mutex mutex_;
  Objects objects_;
  Uploads uploads_;
  std::uint64_t tags_ = 0;
  std::uint64_t uploads_begun_ = 0;
  double clock_ = 1'000'000'000;
  std::uint32_t page_ = 1000;
  bool ignores_conditions_ = false;
  std::array<std::uint64_t, kCallKinds> counts_{};
  std::uint64_t changes_ = 0;
  std::map<std::pair<Call, std::uint64_t>, Fault> faults_;
  std::map<std::uint64_t, Fault> change_faults_;
  std::optional<std::uint64_t> crash_at_;
  bool crashed_ = false;
  bool fired_ = false;
  std::vector<std::function<void()>> late_;
  std::function<void(Call, std::string_view)> before_;
};

}  // namespace cairn::storage
