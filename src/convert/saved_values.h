// SavedValues: values that are not plain data, written into a file of torch.save with the calls of the source's pickle
// and with whole storages.
//
// One thread at a time. Runs no code of the source.
#pragma once

#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "convert/convert_source.h"
#include "format/pickle/graph_writer.h"

namespace cairn::checkpointer {

class SavedValues {
 public:
  // Adds a storage to the target and returns the storage's number, its key in the target's pickle.
  using AddStorage = std::function<std::size_t(std::vector<std::byte> bytes)>;
  // Pushes the tensor of a key, if `object` (the bits of a node of the source's graph) is one, and returns whether.
  using WriteKey = std::function<Result<bool>(pickle::Writer& writer, std::uint64_t object)>;
  SavedValues(const ConvertSource& source, AddStorage add_storage, WriteKey write_key);
  ~SavedValues();
  SavedValues(const SavedValues&) = delete;
  SavedValues& operator=(const SavedValues&) = delete;

  // Reads the value under a key of the source, and returns an Object that stands for the value.
  Result<Value> placeholder(const std::string& fqn);
  bool empty() const { return values_.empty(); }
  // Whether the Object is a placeholder.
  bool holds(const Object& object) const { return values_.contains(&object); }
  // Pushes the value of a placeholder. kUnsupported for a cycle through a tuple or an argument.
  Result<void> write(pickle::Writer& writer, const Object& placeholder);

  // The protocol of the pickle that holds the values. After the last placeholder().
  int protocol() const { return protocol_; }
  // The memo of a source that is a file of torch.save, whose values share objects.
  pickle::NodeMemo& memo() { return memo_; }

 private:
  struct Saved;
  Result<void> read_archive(Saved& saved);

  const ConvertSource& source_;
  AddStorage add_storage_;
  WriteKey write_key_;
  std::unordered_map<const Object*, std::unique_ptr<Saved>> values_;
  std::unordered_map<std::string, std::size_t> numbers_;  // of a file of torch.save: the storages, by key
  int protocol_ = 2;
  pickle::NodeMemo memo_;
};

}  // namespace cairn::checkpointer
