// diff: compares two checkpoints, of any two formats, key by key.
#pragma once

#include <cairn/box.h>
#include <cairn/result.h>
#include <cairn/save_deadlines.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// How the elements of two tensors of equal shape differ. Real floating-point elements, and complex elements, are
// compared as numbers; all other elements (integers, bool, float4) only by their bits. The relative difference of two
// numbers is |a - b| / max(|a|, |b|).
struct ElementDifference {
  std::uint64_t elements = 0;  // of each tensor
  // Elements with different bits: 0.0 and -0.0 differ, and so do two NaN with different payloads. Between two dtypes:
  // numbers that differ; there 0.0 equals -0.0, and NaN equals NaN.
  std::uint64_t unequal = 0;
  // The elements that count: with a tolerance, numbers further apart than the tolerance; otherwise all unequal
  // elements.
  std::uint64_t differing = 0;
  Extents first_differing;   // the index of the first of them in row-major order; empty if there is none
  bool are_numbers = false;  // whether the fields below apply
  std::uint64_t nan_on_one_side = 0;
  // Over all pairs without NaN. Infinite if a number is infinite on one side only, or if the signs of infinities
  // differ.
  double largest_absolute = 0;
  double largest_relative = 0;
  Extents largest_at;  // the index of the first element with the largest absolute difference; empty if that is 0
};

struct KeyDifference {
  enum class Kind : std::uint8_t {
    kOnlyInA,
    kOnlyInB,
    kKind,      // a tensor on one side, a value on the other
    kShape,     // the elements were not compared
    kDType,     // `elements` is set if both dtypes are compared as numbers
    kElements,  // of equal shape and dtype
    kValue,
  };
  std::string key;
  Kind kind = Kind::kElements;
  // Short texts of both sides: "float32 [2, 3]" for a tensor, the differing part of a value as Python prints it. Empty
  // if the side lacks the key or the part.
  std::string a;
  std::string b;
  std::string place;  // of the differing part in a value, as in Python: "['betas'][1]"; empty: the whole value
  std::optional<ElementDifference> elements = {};
};
std::string_view name_of(KeyDifference::Kind kind);  // "only_in_a", "only_in_b", "kind", "shape", "dtype", ...

struct DiffReport {
  // The keys that differ: those of A in the order of A, then those that only B has. Empty: the checkpoints are equal.
  std::vector<KeyDifference> differences;
  // Tensors whose unequal elements are all within the tolerance; with `ignore_dtype` also tensors of two dtypes whose
  // numbers all agree.
  std::vector<KeyDifference> tolerated;
  std::uint64_t tensors = 0;         // keys of tensors on both sides
  std::uint64_t values = 0;          // keys of values on both sides
  std::uint64_t bytes_compared = 0;  // of the tensors, of both sides
};

struct DiffProgress {
  std::uint64_t bytes_compared = 0;
  std::uint64_t bytes_total = 0;  // 0 until both checkpoints are open
};

struct DiffOptions {
  // Numbers agree if their absolute or their relative difference is at most `tolerance`: |a - b| <= tolerance *
  // max(1, |a|, |b|). Two NaN agree, and so do 0.0 and -0.0. An infinity agrees only with itself. Also for floats
  // within values. At least 0 and below 1 (kInvalidArgument): any two numbers of one sign are within a relative
  // difference of 1. Nullopt: bits count.
  std::optional<double> tolerance = {};
  // Tensors whose dtypes alone differ count as tolerated, if all numbers agree and are compared as numbers.
  bool ignore_dtype = false;
  // Patterns (cairn/key_pattern.h) of the keys to compare; empty: all keys. kMissingKey if neither side has a key for a
  // pattern.
  std::vector<std::string> keys = {};
  std::size_t thread_count = 4;
  bool follow_links = false;  // data files may be symbolic links
  // kUnavailable if a call that opens or reads a file takes longer than `publish`.
  SaveDeadlines deadlines = {};
  // Both functions are called every few milliseconds, on the calling thread. After `interrupted` has returned true, the
  // result is kCancelled within a second: a call into the storage that hangs is left alone.
  std::function<bool()> interrupted = {};
  std::function<void(const DiffProgress&)> progress = {};
};

// Compares the keys, shapes, dtypes and elements of the tensors, and the values. Not compared: how tensors are cut into
// chunks and files, requires_grad, nested paths, and the order of keys. Any two formats that open() recognises.
//
// Every byte read is compared with its checksum: damage is an error (kCorrupt with key, file and offset) and never a
// difference. kUnsafe for a torch.save file whose tensors repeat few elements very often (strides of 0): they could
// keep the comparison busy for years. Memory: 12 MiB per thread, the catalogs, and one value of each side per thread.
Result<DiffReport> diff(const std::filesystem::path& a, const std::filesystem::path& b,
                        const DiffOptions& options = {});

}  // namespace cairn
