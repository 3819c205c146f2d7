#include "staging/source_samples.h"

#include <algorithm>
#include <cstring>

#include "core/mixed_number.h"

namespace cairn::staging {
namespace {

constexpr std::uint64_t kStratumBytes = 1024 * 1024;  // the length of a range with one sample
constexpr std::uint64_t kEndSampledFrom = 64 * 1024;  // a tensor with more bytes has a sample at its end too
constexpr std::size_t kReadAhead = 16;                // samples being prefetched into the cache

std::uint64_t strata_of(std::uint64_t bytes) { return (bytes + kStratumBytes - 1) / kStratumBytes; }
std::uint64_t count_of(std::uint64_t bytes) { return strata_of(bytes) + (bytes > kEndSampledFrom ? 1 : 0); }

// Reads samples from memory that is rarely in the cache: prefetches each sample, and reads the sample a few samples
// later.
class SampleReader {
 public:
  void read(const std::byte* source, std::byte* target, std::size_t length) {
    __builtin_prefetch(source);
    Read& slot = waiting_[next_++ % kReadAhead];
    if (next_ > kReadAhead) finish(slot);
    slot = {source, target, length};
  }
  void finish_all() const {
    for (std::size_t i = 0; i < std::min(next_, kReadAhead); ++i) finish(waiting_[i]);
  }

 private:
  struct Read {
    const std::byte* source;
    std::byte* target;
    std::size_t length;
  };
  static void finish(const Read& read) { std::memcpy(read.target, read.source, read.length); }

  std::array<Read, kReadAhead> waiting_;
  std::size_t next_ = 0;
};

}  // namespace

// A sample begins at a multiple of its size: the sample lies in one cache line and in one part of a copy.
std::uint64_t SourceSamples::place_of(std::size_t index, std::uint64_t number, std::uint64_t bytes) const {
  if (number == strata_of(bytes)) return (bytes - 1) / kSampleBytes * kSampleBytes;  // the sample at the end
  const std::uint64_t begin = number * kStratumBytes;
  const std::uint64_t length = std::min(kStratumBytes, bytes - begin);
  const std::uint64_t places = std::max<std::uint64_t>(length / kSampleBytes, 1);
  const std::uint64_t random = mixed_number(seed_ + first_[index] + number) >> 32;
  return begin + (random * places >> 32) * kSampleBytes;
}

SourceSamples SourceSamples::take(std::span<const CopyItem> items, std::uint64_t seed) {
  SourceSamples result;
  result.seed_ = seed;
  result.first_.reserve(items.size() + 1);
  std::vector<CopyForm> forms;
  forms.reserve(items.size());
  std::uint64_t count = 0;
  for (const CopyItem& item : items) {
    result.first_.push_back(static_cast<std::uint32_t>(count));
    if (item.tensor == nullptr || !item.tensor->device.is_cpu()) {
      forms.emplace_back();
      continue;
    }
    forms.push_back(form_of(item));
    count += count_of(forms.back().bytes);
  }
  result.first_.push_back(static_cast<std::uint32_t>(count));
  result.samples_ = std::make_unique_for_overwrite<Sample[]>(count);
  SampleReader reader;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const CopyForm& form = forms[i];
    Sample* sample = &result.samples_[result.first_[i]];
    for (std::uint64_t number = 0; number < result.first_[i + 1] - result.first_[i]; ++number, ++sample) {
      const std::uint64_t place = result.place_of(i, number, form.bytes);
      const std::size_t length = std::min(kSampleBytes, form.bytes - place);
      if (form.is_one_stretch) {
        reader.read(static_cast<const std::byte*>(items[i].tensor->data) + place, sample->data(), length);
      } else {
        copy_part(items[i], form, place, std::span(*sample).first(length));
      }
    }
  }
  reader.finish_all();
  return result;
}

bool SourceSamples::agree(std::size_t index, const CopyForm& form, std::uint64_t begin,
                          std::span<const std::byte> copied) const {
  if (first_.empty() || first_[index] == first_[index + 1]) return true;
  const std::uint64_t end = begin + copied.size();
  std::uint64_t last = strata_of(end);  // one past
  if (end == form.bytes) last = first_[index + 1] - first_[index];
  for (std::uint64_t number = begin / kStratumBytes; number < last; ++number) {
    const std::uint64_t place = place_of(index, number, form.bytes);
    const std::size_t length = std::min(kSampleBytes, form.bytes - place);
    const std::byte* const sampled = samples_[first_[index] + number].data();
    if (std::memcmp(sampled, copied.data() + (place - begin), length) != 0) return false;
  }
  return true;
}

}  // namespace cairn::staging
