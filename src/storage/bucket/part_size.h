// The size of the parts of a multipart upload.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/checked.h"
#include "storage/bucket/object_store.h"

namespace cairn::storage {

// Large enough for the transfer of a part to take much longer than the latency of a request.
inline constexpr std::uint64_t kUsualPartBytes = 16 << 20;

// The bytes of each part but the last, for an object of `object_bytes` bytes: a multiple of 1 MiB.
constexpr std::uint64_t part_bytes_of(std::uint64_t object_bytes) {
  constexpr std::uint64_t kStep = 1 << 20;
  const std::uint64_t least = (object_bytes + ObjectStore::kPartCountMax - 1) / ObjectStore::kPartCountMax;
  return std::max(kUsualPartBytes, align_up(least, kStep));
}

static_assert(kUsualPartBytes >= ObjectStore::kPartBytesMin);

}  // namespace cairn::storage
