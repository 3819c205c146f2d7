#include "convert/saved_values.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "convert/convert_job.h"
#include "core/byte_source.h"
#include "format/pickle/machine.h"
#include "format/torch_file/archive_reader.h"
#include "format/torch_file/checked_storages.h"
#include "format/torch_file/storage_renamer.h"

namespace cairn::checkpointer {
namespace {

using torch_file::ArchiveReader;
using torch_file::StateFile;
using torch_file::StorageNode;

class RenamerWithKeys final : public torch_file::StorageRenamer {
 public:
  RenamerWithKeys(NumberOf number_of, const SavedValues::WriteKey& write_key)
      : StorageRenamer(std::move(number_of)), write_key_(write_key) {}
  Result<bool> write_call(pickle::Writer& writer, const pickle::Graph& /*graph*/, pickle::Node node) override {
    return write_key_(writer, node.bits());
  }

 private:
  const SavedValues::WriteKey& write_key_;
};

Error of_other_order() {
  return Error(ErrorCode::kUnsupported, "a value that is not plain data, in an archive of the other byte order");
}

}  // namespace

struct SavedValues::Saved {
  std::string fqn;
  // Of a source that is not a file of torch.save: the value's own archive.
  std::string payload = {};
  std::unique_ptr<MemorySource> bytes = nullptr;
  std::optional<ArchiveReader> archive = {};
  std::vector<std::byte> pickled = {};
  std::optional<pickle::Graph> graph = {};
};

SavedValues::SavedValues(const ConvertSource& source, AddStorage add_storage, WriteKey write_key)
    : source_(source), add_storage_(std::move(add_storage)), write_key_(std::move(write_key)) {}
SavedValues::~SavedValues() = default;

Result<Value> SavedValues::placeholder(const std::string& fqn) {
  auto saved = std::make_unique<Saved>(Saved{fqn});
  auto object = std::make_unique<Object>();
  std::uint64_t identity = 0;
  if (const StateFile* file = source_.torch_file()) {
    if (file->big_endian()) return of_other_order();
    protocol_ = std::max(protocol_, file->protocol());
    identity = StateFile::object_of(*file->find(fqn));
  } else {
    CAIRN_TRY(read_archive(*saved));
  }
  values_.emplace(object.get(), std::move(saved));
  Value value(std::move(object));
  value.set_identity(identity);
  return value;
}

Result<void> SavedValues::read_archive(Saved& saved) {
  CAIRN_TRY_ASSIGN(saved.payload, source_.checkpoint().read_payload(saved.fqn, source_.load_options()));
  saved.bytes = std::make_unique<MemorySource>(std::as_bytes(std::span(saved.payload)));
  CAIRN_TRY_ASSIGN(ArchiveReader archive, ArchiveReader::open(*saved.bytes));
  CAIRN_TRY_ASSIGN(const bool big_endian, archive.big_endian());
  if (big_endian) return of_other_order();
  CAIRN_TRY_ASSIGN(saved.pickled, archive.read("data.pkl"));
  CAIRN_TRY_ASSIGN(pickle::Graph graph, pickle::parse(saved.pickled));
  protocol_ = std::max(protocol_, pickle::protocol_of(graph));
  saved.graph = std::move(graph);
  saved.archive = std::move(archive);
  return {};
}

Result<void> SavedValues::write(pickle::Writer& writer, const Object& placeholder) {
  const Saved& saved = *values_.at(&placeholder);
  const StateFile* const file = source_.torch_file();
  std::unordered_map<std::string, std::size_t> own_numbers;
  auto& numbers = file != nullptr ? numbers_ : own_numbers;
  const auto number_of = [&](const StorageNode& storage) -> Result<std::size_t> {
    const std::string key(storage.key);
    if (const auto known = numbers.find(key); known != numbers.end()) return known->second;
    Result<std::vector<std::byte>> bytes =
        file != nullptr ? file->storage(key) : saved.archive->read(torch_file::storage_record_name(key));
    if (!bytes) return std::move(bytes).error().key(saved.fqn);
    CAIRN_TRY(torch_file::check_storage_bytes(key, storage.bytes, bytes->size()));
    const std::size_t number = add_storage_(*std::move(bytes));
    numbers.emplace(key, number);
    return number;
  };
  Result<void> written;
  if (file != nullptr) {
    RenamerWithKeys renamer(number_of, write_key_);
    written = file->write_as_saved(writer, *file->find(saved.fqn), renamer, memo_);
  } else {
    torch_file::StorageRenamer renamer(number_of);
    written = pickle::write_node(writer, *saved.graph, saved.graph->root(), &renamer);
  }
  if (!written) return advised(std::move(written).error().key(saved.fqn));
  return {};
}

}  // namespace cairn::checkpointer
