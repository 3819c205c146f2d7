#include "storage/bucket/bucket_readable_file.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>
#include <utility>

#include "os/parallel.h"

namespace cairn::storage {
namespace {

// A request for fewer bytes takes as long.
constexpr std::uint64_t kSmallReadBytes = 64 << 10;
// Large enough for the transfer to take longer than the latency of a request.
constexpr std::uint64_t kRangeBytes = 8 << 20;
// The requests of one read at a time.
constexpr std::uint64_t kRangesInFlight = 8;
// Of a load: a request has at most 2 MiB, and waits some tens of milliseconds for its first byte.
constexpr std::size_t kFileRequestsInFlight = 16;

class BucketReadableFile final : public ReadableFile {
 public:
  BucketReadableFile(BucketPlace place, std::string_view name, ObjectVersion version)
      : place_(std::move(place)),
        name_(name),
        key_(place_.key_of(name)),
        version_(std::move(version)),
        number_(place_.memory->windows.new_file()) {}
  ~BucketReadableFile() override { place_.memory->windows.forget(number_); }
  BucketReadableFile(const BucketReadableFile&) = delete;
  BucketReadableFile& operator=(const BucketReadableFile&) = delete;

  std::uint64_t size() const override { return version_.size; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> target) const override {
    if (!holds(offset, target.size())) {
      return Error(ErrorCode::kCorrupt, "the file is too short")
          .file(name_)
          .offset(offset)
          .expected(std::to_string(target.size()) + " bytes")
          .actual("an object of " + std::to_string(size()) + " bytes");
    }
    if (target.size() <= kSmallReadBytes) {
      const auto fetch = [this](std::uint64_t begin, std::span<std::byte> bytes) { return read_range(begin, bytes); };
      return place_.memory->windows.read(number_, size(), offset, target, fetch);
    }
    const std::uint64_t ranges = (target.size() + kRangeBytes - 1) / kRangeBytes;
    if (ranges <= 2) return read_range(offset, target);
    std::atomic<std::uint64_t> next{0};
    return os::run_parallel(
        std::min(ranges, kRangesInFlight), {}, [&](std::size_t, os::StopFlag& stop) -> Result<void> {
          while (!stop.is_set()) {
            const std::uint64_t range = next.fetch_add(1);
            if (range >= ranges) break;
            const std::uint64_t begin = range * kRangeBytes;
            CAIRN_TRY(read_range(offset + begin,
                                 target.subspan(begin, std::min<std::uint64_t>(kRangeBytes, target.size() - begin))));
          }
          return {};
        });
  }

  // A bucket is behind no page cache.
  std::optional<DirectAlignment> direct_alignment() const override { return std::nullopt; }
  Result<void> read_direct_at(std::uint64_t offset, std::span<std::byte> target) const override {
    return read_at(offset, target);
  }
  bool is_cached(std::uint64_t /*offset*/, std::uint64_t /*length*/) const override { return false; }
  std::size_t requests_in_flight() const override { return kFileRequestsInFlight; }
  std::string tag() const override { return version_.tag; }

 private:
  Result<void> read_range(std::uint64_t offset, std::span<std::byte> target) const {
    const Result<ObjectVersion> read = place_.store->read(key_, offset, target, version_.tag);
    if (read) return {};
    const Error& error = read.error();
    if (error.code() != ErrorCode::kReplaced) return place_.explain(error, name_, "reading an object").offset(offset);
    return place_.explain(Error(ErrorCode::kUnavailable, "the object was replaced while it was being read")
                              .expected(version_.tag)
                              .actual(error.actual().value_or("another tag"))
                              .offset(offset),
                          name_, "reading an object");
  }

  BucketPlace place_;
  std::string name_;
  std::string key_;
  ObjectVersion version_;
  std::uint64_t number_;
};

}  // namespace

Result<std::unique_ptr<ReadableFile>> open_bucket_file(const BucketPlace& place, std::string_view name) {
  Result<ObjectVersion> version = place.store->describe(place.key_of(name));
  if (!version) return place.explain(version.error(), name, "opening an object");
  return std::unique_ptr<ReadableFile>(std::make_unique<BucketReadableFile>(place, name, *std::move(version)));
}

}  // namespace cairn::storage
