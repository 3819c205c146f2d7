#include "repair/rebuilt_catalog.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/seeded_hash.h"
#include "format/dcp/metadata_template.h"
#include "format/manifest/trailer.h"
#include "plan/chunk_validation.h"
#include "plan/uncovered_boxes.h"

namespace cairn::checkpointer {
namespace {

using manifest::TrailerItem;

constexpr std::size_t kRegionsShown = 16;
constexpr std::size_t kRegionsHeld = 4096;

class CatalogMaker {
 public:
  Result<void> add_file(const storage::Storage& storage, const FoundFile& found) {
    CAIRN_TRY_ASSIGN(const std::unique_ptr<storage::ReadableFile> file, storage.open(found.name, false));
    CAIRN_TRY_ASSIGN(const std::optional<manifest::Trailer> trailer, manifest::read_trailer(*file));
    if (!trailer || trailer->checksum() != found.trailer_checksum || file->size() != found.size) {
      return Error(ErrorCode::kReplaced, "the data file was replaced during the repair").file(found.name);
    }
    const auto number = static_cast<std::uint32_t>(catalog_.files.size());
    catalog_.files.push_back(found.name);
    for (std::size_t i = 0; i < trailer->item_count(); ++i) {
      TrailerItem item = trailer->item(i);
      const ItemLocation location{number, item.range.item_offset, item.range.item_length};
      if (auto added = add(std::move(item), location); !added) {
        return std::move(added).error().file(found.name).offset(location.offset);
      }
    }
    return {};
  }

  Result<RebuiltCatalog> take() && {
    for (CatalogTensor& tensor : catalog_.tensors) {
      if (check_chunks(tensor)) continue;
      drop_repeated_chunks(tensor);
      CAIRN_TRY(check_chunks(tensor));
    }
    if (repeated_ != 0) {
      rebuilt_.warnings.push_back(std::to_string(repeated_) + " items are in several data files, '" + first_repeated_ +
                                  "' among them; the metadata names the first of each");
    }
    catalog_.version = std::string(dcp::kMetadataVersion);
    rebuilt_.catalog = std::move(catalog_);
    return std::move(rebuilt_);
  }

 private:
  Result<void> add(TrailerItem item, const ItemLocation& location) {
    const auto known = places_.find(item.fqn);
    const bool is_value = item.kind == TrailerItem::Kind::kValue;
    if (known != places_.end()) {
      const Catalog::KeyRef ref = catalog_.keys[known->second];
      if (ref.is_tensor == is_value) {
        return Error(ErrorCode::kCorrupt, "a key is a tensor in one data file and a value in another").key(item.fqn);
      }
      if (is_value) {
        note_repeated(item.fqn);
        return {};
      }
      return add_chunk(catalog_.tensors[ref.index], item, location);
    }
    places_.emplace(item.fqn, catalog_.keys.size());
    if (!item.path.empty()) catalog_.paths.emplace_back(item.fqn, std::move(item.path));
    if (is_value) {
      catalog_.keys.push_back({false, static_cast<std::uint32_t>(catalog_.values.size())});
      catalog_.values.push_back({std::move(item.fqn), location});
      return {};
    }
    catalog_.keys.push_back({true, static_cast<std::uint32_t>(catalog_.tensors.size())});
    if (auto count = element_count(item.global_shape); !count) {
      return Error(ErrorCode::kCorrupt, count.error().message()).key(item.fqn).actual(to_string(item.global_shape));
    }
    CatalogTensor& tensor = catalog_.tensors.emplace_back();
    tensor.fqn = item.fqn;
    tensor.dtype = item.dtype;
    tensor.shape = item.global_shape;
    tensor.requires_grad = item.requires_grad;
    return add_chunk(tensor, item, location);
  }

  Result<void> add_chunk(CatalogTensor& tensor, const TrailerItem& item, const ItemLocation& location) {
    if (tensor.dtype != item.dtype || tensor.shape != item.global_shape) {
      return Error(ErrorCode::kCorrupt, "two data files contradict each other about a tensor")
          .key(item.fqn)
          .expected(std::string(name_of(tensor.dtype)) + " " + to_string(tensor.shape))
          .actual(std::string(name_of(item.dtype)) + " " + to_string(item.global_shape));
    }
    tensor.boxes.insert(tensor.boxes.end(), item.box.offsets().begin(), item.box.offsets().end());
    tensor.boxes.insert(tensor.boxes.end(), item.box.sizes().begin(), item.box.sizes().end());
    tensor.locations.push_back(location);
    return {};
  }

  void note_repeated(const std::string& fqn) {
    if (repeated_++ == 0) first_repeated_ = fqn;
  }

  void drop_repeated_chunks(CatalogTensor& tensor) {
    const std::size_t width = 2 * tensor.shape.size();
    std::set<std::vector<std::int64_t>> seen;
    std::vector<std::int64_t> boxes;
    std::vector<ItemLocation> locations;
    for (std::size_t chunk = 0; chunk < tensor.chunk_count(); ++chunk) {
      const auto begin = tensor.boxes.begin() + static_cast<std::ptrdiff_t>(chunk * width);
      std::vector<std::int64_t> box(begin, begin + static_cast<std::ptrdiff_t>(width));
      if (!seen.insert(box).second) {
        note_repeated(tensor.fqn);
        continue;
      }
      boxes.insert(boxes.end(), box.begin(), box.end());
      locations.push_back(tensor.locations[chunk]);
    }
    tensor.boxes = std::move(boxes);
    tensor.locations = std::move(locations);
  }

  // All chunks of a tensor without dimensions are the whole tensor.
  static Result<void> check_chunks(const CatalogTensor& tensor) {
    if (tensor.shape.empty() && tensor.chunk_count() > 1) {
      return Error(ErrorCode::kCorrupt, "two chunks of the tensor overlap").key(tensor.fqn);
    }
    auto valid = plan::validate_chunks({tensor.fqn, tensor.shape, tensor.boxes, {}}, plan::Coverage::kPart);
    if (valid) return {};
    Error corrupt(ErrorCode::kCorrupt, valid.error().message());
    if (valid.error().expected()) corrupt = std::move(corrupt).expected(*valid.error().expected());
    if (valid.error().actual()) corrupt = std::move(corrupt).actual(*valid.error().actual());
    return std::move(corrupt).key(tensor.fqn);
  }

  Catalog catalog_;
  RebuiltCatalog rebuilt_;
  std::unordered_map<std::string, std::size_t, SeededHash> places_;  // in catalog_.keys
  std::uint64_t repeated_ = 0;
  std::string first_repeated_;
};

// Nullopt if no element is lost.
std::optional<LostElements> lost_elements_of(const CatalogTensor& tensor) {
  const Result<Box> whole = Box::whole(tensor.shape);
  if (!whole) return std::nullopt;
  LostElements lost{tensor.fqn, tensor.shape, 0, {}};
  auto rest = plan::uncovered_boxes(*whole, tensor.boxes, kRegionsHeld);
  if (!rest) return lost;
  if (rest->empty()) return std::nullopt;
  for (const Box& box : *rest) lost.elements += box.element_count();
  rest->resize(std::min(rest->size(), kRegionsShown));
  lost.regions = *std::move(rest);
  return lost;
}

}  // namespace

Result<RebuiltCatalog> rebuild_catalog(const storage::Storage& storage, const SaveFiles& save,
                                       const std::function<bool()>& interrupted) {
  CatalogMaker maker;
  for (const FoundFile& file : save.files) {
    if (interrupted && interrupted()) {
      return Error(ErrorCode::kCancelled, "interrupted while the metadata was rebuilt");
    }
    CAIRN_TRY(maker.add_file(storage, file));
  }
  return std::move(maker).take();
}

std::vector<LostElements> find_lost_elements(const Catalog& catalog, std::size_t count_max) {
  std::vector<LostElements> lost;
  for (const CatalogTensor& tensor : catalog.tensors) {
    const plan::TensorChunks chunks{tensor.fqn, tensor.shape, tensor.boxes, {}};
    const bool is_lost_scalar = tensor.shape.empty() && tensor.chunk_count() == 0;  // which validate_chunks() passes
    if (!is_lost_scalar && plan::validate_chunks(chunks, plan::Coverage::kWhole)) continue;
    if (auto found = lost_elements_of(tensor)) lost.push_back(*std::move(found));
    if (lost.size() == count_max) break;
  }
  return lost;
}

}  // namespace cairn::checkpointer
