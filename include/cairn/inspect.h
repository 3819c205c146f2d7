// verify, diff, read_key, export_npy: examine a checkpoint, of any format. examine_machine, bench_directory: examine
// the machine, and a directory that is to hold checkpoints.
#pragma once

#include <cairn/catalog.h>
#include <cairn/options.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>
#include <cairn/tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace cairn {

struct VerifyReport {
  std::vector<Error> problems;        // each has a file, and key and offset if known; empty: no damage
  std::uint64_t files = 0;            // data files read
  std::uint64_t bytes_checked = 0;    // bytes with a checksum
  std::uint64_t bytes_unchecked = 0;  // bytes without a checksum (gaps, records without CRC, transformed items)
  // Keys of items that were written through stream transforms (compression), with the names of the transforms. The
  // bytes of these items count as unchecked: verify() checks only that the items lie within their files.
  std::vector<std::pair<std::string, std::string>> unchecked_keys;
  std::uint64_t tensors = 0;
  std::uint64_t values = 0;
  // The bytes of a safetensors file without Cairn's checksums, and of a legacy torch.save file, are unchecked.
  CheckpointFormat format = CheckpointFormat::kDcp;
  // true: Cairn wrote the checkpoint; false: only the zip checksums of stock torch were checked.
  bool has_commit_record = false;
  // What the files leave open: for example that the number of shards that torch wrote without an index is unknown.
  std::vector<std::string> warnings;
};

struct VerifyProgress {
  std::uint64_t bytes_read = 0;   // of the data files
  std::uint64_t bytes_total = 0;  // of the data files; 0 until the data files are open
};

struct VerifyOptions {
  std::size_t thread_count = 4;
  bool follow_links = false;  // allows symbolic links as data files
  // kUnavailable if a call that opens or reads a file takes longer than `publish`.
  SaveDeadlines deadlines = {};
  // Both functions are called every few milliseconds, on the calling thread. After `interrupted` has returned true, the
  // result is kCancelled within a second: a call into the storage that hangs is left alone.
  std::function<bool()> interrupted = {};
  std::function<void(const VerifyProgress&)> progress = {};
};

// Reads a whole checkpoint, and checks every byte against its checksum and every chunk against its tensor. Fails only
// if `directory` has no checkpoint (kNotFound), if the metadata can't be read at all, or if `interrupted` has returned
// true.
Result<VerifyReport> verify(const std::filesystem::path& directory, const VerifyOptions& options = {});

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
  // Patterns (matches_key()) of the keys to compare; empty: all keys. kMissingKey if neither side has a key for a
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

// Compares two checkpoints, of any two formats that open() recognises: the keys, the shapes, dtypes and elements of the
// tensors, and the values. Not compared: how tensors are cut into chunks and files, requires_grad, nested paths, and
// the order of keys.
//
// Every byte read is compared with its checksum: damage is an error (kCorrupt with key, file and offset) and never a
// difference. kUnsafe for a torch.save file whose tensors repeat few elements very often (strides of 0): they could
// keep the comparison busy for years. Memory: 12 MiB per thread, the catalogs, and one value of each side per thread.
Result<DiffReport> diff(const std::filesystem::path& a, const std::filesystem::path& b,
                        const DiffOptions& options = {});

struct TensorSummary {
  // The meaning of the elements. Only real numbers have an order.
  enum class Numbers : std::uint8_t {
    kReal,     // integers and bool included
    kComplex,  // no minimum, maximum and mean
    kNone,     // float4, bits: no number at all
  };
  Numbers numbers = Numbers::kReal;
  std::uint64_t elements = 0;
  // Of complex numbers: elements of which a part is NaN; else of which a part is infinite. 0 for kNone.
  std::uint64_t nan_count = 0;
  std::uint64_t infinity_count = 0;
  // Of the finite elements; nullopt if there are none, and for kComplex and kNone. Minimum and maximum are exact:
  // integers and bool are int64, elements of uint64 are uint64, all floats are double.
  using Number = std::variant<double, std::int64_t, std::uint64_t>;
  std::optional<Number> minimum = {};
  std::optional<Number> maximum = {};
  std::optional<double> mean = {};
};
std::string_view name_of(TensorSummary::Numbers numbers);  // "real", "complex", "none"

// Either `value`, or `tensor` and `summary`.
struct KeyContent {
  std::optional<Value> value = {};
  std::optional<CatalogTensor> tensor = {};
  TensorSummary summary = {};
};

// Opens the checkpoint `directory`, of any format, and reads the key: a tensor once, verified, with bounded memory.
// kMissingKey if the checkpoint has no such key; kUnsupported for a tensor that only torch can read (quantised);
// kUnsafe for a tensor of a torch.save file that repeats few elements very often.
Result<KeyContent> read_key(const std::filesystem::path& directory, std::string_view key,
                            const TensorPassOptions& options = {});

// Writes the tensor under `key` of the checkpoint `directory`, of any format, to `file`, in NumPy's format .npy. The
// file gets its name by a rename when all bytes are written and synced; a kill may leave a hidden file
// `.NAME.*.partial` beside `file`. An existing file is kInvalidArgument unless `overwrite`, which replaces the file; a
// file of the checkpoint itself is always kInvalidArgument. Reads the tensor once, verified, with bounded memory. NumPy
// has no dtype for bfloat16 and float8: their elements become float32, which holds each of their numbers exactly;
// complex32 becomes complex64. kUnsupported for float4, bits and quantised dtypes; kMissingKey if the checkpoint has no
// such tensor; kUnsafe for a tensor of a torch.save file that repeats few elements very often.
Result<void> export_npy(const std::filesystem::path& directory, std::string_view key, const std::filesystem::path& file,
                        const TensorPassOptions& options = {}, bool overwrite = false);

// What a machine and a directory offer to saves and loads, and what Cairn uses of this.
struct MachineFinding {
  enum class Unit : std::uint8_t { kBytes, kBytesPerSecond };

  std::string subject;                       // in snake_case: "direct_io"
  std::string found;                         // what is there
  std::string use;                           // what Cairn does in consequence
  std::string advice = {};                   // for the user; empty if nothing is weak
  std::optional<std::uint64_t> number = {};  // if the subject is a size or a rate
  Unit unit = Unit::kBytes;                  // of `number`
  bool is_obstacle = false;                  // durable saves into the directory fail because of this
};

struct MachineOptions {
  // The largest size of the file whose writing and reading is timed. A directory with less than four times the room
  // gets a smaller file, or none.
  std::uint64_t trial_bytes = std::uint64_t{256} << 20;
  // Neither the writing nor the reading goes on for longer; the rates are then of a part of the file.
  std::chrono::milliseconds trial_time{3000};
  // For the calls into the storage. A storage that exceeds a deadline is a finding.
  SaveDeadlines deadlines{std::chrono::seconds(30), std::chrono::minutes(1), std::chrono::seconds(30)};
  // Called every few milliseconds on the calling thread, while the directory is examined. True ends the call:
  // kCancelled.
  std::function<bool()> interrupted = {};
};

// Examines the directory by files in a new private folder `.cairn-doctor-*`, and removes the folder before the call
// returns, whatever the result; a storage that hangs has two seconds for the removal. The timed file has no name: a
// killed process leaves at most the folder with a few bytes. The names of the directory are neither listed nor changed.
// A directory that can't be written, or whose storage hangs, is a finding. Fails with kNotFound if the directory is
// missing, and with kInvalidArgument if the path is no directory.
Result<std::vector<MachineFinding>> examine_machine(const std::filesystem::path& directory,
                                                    const MachineOptions& options = {});

// Bytes per second.
struct BenchRates {
  double raw_write = 0;  // a file of the state's size, four requests of 4 MiB in flight, synced
  double save = 0;       // a durable save
  double raw_read = 0;   // the file of raw_write, from the device
  double load = 0;       // with the default checks, from the device
};

struct BenchReport {
  std::uint64_t bytes = 0;  // of the state
  std::size_t tensors = 0;
  bool is_direct = false;  // whether the raw file is written and read past the page cache
  std::vector<BenchRates> rounds;
  BenchRates median;      // of each rate
  double save_ratio = 0;  // the median of save ÷ raw_write of each round
  double load_ratio = 0;  // the median of load ÷ raw_read
};

struct BenchOptions {
  std::uint64_t bytes = std::uint64_t{1} << 30;  // rounded down to 4 MiB; at least 4 MiB
  std::size_t rounds = 3;                        // at least 1
  SaveDeadlines deadlines = {};                  // of the calls into the storage, except of the loads
  // Called every few milliseconds on the calling thread. True ends the call: kCancelled.
  std::function<bool()> interrupted = {};
};

// Times saves and loads of a synthetic state, beside the raw device in the same run: each round writes the raw file,
// saves, reads the raw file, and loads. The files lie in a new private folder `.cairn-bench-*` of the directory, which
// is removed before the call returns, whatever the result; a storage that hangs has two seconds for the removal. A
// killed process leaves the folder. Takes `bytes` of memory, and twice `bytes` of the disk: kNoSpace without the room
// on the disk, kUnavailable without the memory. Fails with kNotFound if the directory is missing.
Result<BenchReport> bench_directory(const std::filesystem::path& directory, const BenchOptions& options = {});

}  // namespace cairn
