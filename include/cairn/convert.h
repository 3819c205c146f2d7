// convert: copies a checkpoint into another format, or with other keys, dtypes or files.
//
// The copy streams: besides the values that are not tensors, and the catalog, the memory is a few buffers of 4 MiB for
// each thread, whatever the size of the checkpoint. Every byte read is compared with its checksum, and the result
// appears under its name only when it is whole.
#pragma once

#include <cairn/catalog.h>
#include <cairn/checkpoint.h>
#include <cairn/options.h>
#include <cairn/result.h>
#include <cairn/tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace cairn {

// The dtype of the floating-point tensors whose keys in the source match `pattern` (matches_key()).
struct KeyDType {
  std::string pattern;
  DType dtype = DType::kFloat32;
};

struct ConvertProgress {
  std::uint64_t bytes_done = 0;   // of the tensors, as they are written
  std::uint64_t bytes_total = 0;  // 0 until the source is open and the target is laid out
};

struct ConvertOptions {
  // --- the target
  CheckpointFormat to = CheckpointFormat::kDcp;
  // Patterns (matches_key()): keys that match none of them are left out. Empty: all keys. A pattern without a
  // match is an error (kMissingKey).
  std::vector<std::string> keys = {};
  // Keys that match one of these patterns are left out, whatever `keys` says. A pattern without a match is an error
  // (kMissingKey).
  std::vector<std::string> exclude = {};
  // The first rename that matches a key renames the key. kMissingKey if a rename applies to no key; kInvalidArgument if
  // two keys get the same name, or if the nested place of a key becomes a part of the place of another.
  std::vector<KeyRename> renames = {};
  // Of all real floating-point tensors; a floating-point dtype. Packed 4-bit floats and float8_e8m0fnu, the dtype of
  // scales, are left alone. ConvertReport::warnings names them, and names tensors whose values the new dtype can't
  // hold.
  std::optional<DType> dtype = {};
  // The first pattern that matches a key decides, in place of `dtype`. A pattern without a match is an error
  // (kMissingKey).
  std::vector<KeyDType> key_dtypes = {};
  // kDcp: keys of dicts that are no text, and empty dicts, are saved as one more value (docs/format.md, section 9).
  bool keep_shape = true;
  std::uint64_t max_shard_bytes = 0;  // kSafetensors: of the tensors of a file; 0: one file
  std::size_t file_count = 1;         // kDcp: the number of data files, balanced by bytes
  // No metadata of Cairn's own: the bytes of the target depend only on the source and these options. A safetensors file
  // then has no checksums. Only for one file as the target, else kInvalidArgument.
  bool plain = false;
  bool overwrite = false;  // false: an existing target is an error (kInvalidArgument)
  // With `overwrite`: replaces also a file that is neither empty nor of torch.save or safetensors by its first bytes.
  // false: such a file as the target is an error (kInvalidArgument).
  bool overwrite_any_file = false;
  Durability durability = Durability::kDurable;
  // --- the source
  // kFull and kNeeded: every byte read is checked. kFull: a record of which only a part is needed, and which has only a
  // checksum of the whole, is read whole for the check. kNone: trust the storage.
  Verify verify = Verify::kFull;
  bool follow_links = false;  // data files may be symbolic links
  // A value that is not plain data (its pickle names a class or function, beyond those that
  // torch.load(weights_only=True) allows) is an error: kUnsafe with key and class.
  // true: the value's pickle is copied. The conversion runs no code in either case; a load of the copied value does.
  bool allow_pickle = false;
  // --- when the conversion fails
  // Of the calls into the storages of source and target, as of a save; `publish` limits a read, too. kUnavailable if a
  // call takes longer.
  SaveDeadlines deadlines = {};
  // --- options that change only speed
  std::size_t thread_count = 4;
  bool direct_io = true;
  // Both functions are called every few milliseconds, on the calling thread. After `interrupted` has returned true, the
  // conversion fails with kCancelled and leaves no target. If `interrupted` throws, the conversion is given up at once.
  std::function<bool()> interrupted = {};
  std::function<void(const ConvertProgress&)> progress = {};
};

// Tensors of the source that share elements in torch, by their new names.
struct TiedTensors {
  std::vector<std::string> keys;
  bool stay_tied = false;  // false: the target holds a copy for each key
};

struct ConvertReport {
  CheckpointFormat from = CheckpointFormat::kDcp;
  std::filesystem::path directory;  // of the files
  std::vector<std::string> files;   // the files of the target, relative to `directory`
  std::uint64_t tensors = 0;
  std::uint64_t values = 0;             // keys that are not tensors
  std::uint64_t tensor_bytes = 0;       // as written
  std::uint64_t bytes_written = 0;      // of all files
  std::vector<Conversion> conversions;  // by the keys' names in the source
  std::vector<TiedTensors> tied;
  // Also of what the target can't hold: values beyond the range of the new dtype, classes and keys of dicts, and
  // metadata; and of what is unknown about the source, such as the number of its shards.
  std::vector<std::string> warnings;
};

// Copies the checkpoint `source`, of any format that open() recognises, to `target`:
//   kDcp          a directory, made if missing. cairn::latest never ranks the copy before the saves of the source's run
//                 (cairn/latest.h).
//   kTorchSave    a file. torch.load returns the nested state. From a file of torch.save, the keys of dicts keep their
//                 types, and empty dicts and OrderedDicts stay. The file has bytes of the copied tensors alone.
//   kSafetensors  a file, if the name ends in ".safetensors" (then max_shard_bytes must be 0); otherwise a directory,
//                 which gets model.safetensors, or several files with model.safetensors.index.json. kUnsupported for a
//                 key that is not a tensor: leave the key out by `keys` or `exclude`. Metadata of other programs in the
//                 headers and the index of a safetensors source are copied.
// A file as the target that is a symbolic link: the link stays, and the file that the link names is written.
// A value of a DCP checkpoint keeps its stored bytes in a DCP target, whatever classes they name.
// kInvalidArgument if the target is the source, or would replace a file of the source; a new directory within the
// source is allowed. A file as the target affects this one file. A directory with a checkpoint of another format is
// kInvalidArgument, also with `overwrite`: programs would still find the other checkpoint. So is the file
// model.safetensors beside a model of several files. kCorrupt names key, file and offset of a checksum that
// differs. After a failure or a kill the target is as before; the next conversion or save to the target removes the
// leftovers of a dead conversion.
Result<ConvertReport> convert(const std::filesystem::path& source, const std::filesystem::path& target,
                              const ConvertOptions& options = {});

}  // namespace cairn
