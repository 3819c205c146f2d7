#include "inspect/catalog_comparison.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string_view>
#include <utility>

namespace cairn::checkpointer {
namespace {

class CatalogComparison {
 public:
  CatalogComparison(const manifest::CommitRecord& record, const Catalog& pickle, std::size_t problems_max)
      : record_(record), pickle_(pickle), problems_max_(problems_max) {}

  std::vector<Error> run(const compact_catalog::CompactCatalog& compact) && {
    const Result<void> walked = compact.for_each(
        [this](const CatalogTensor& tensor) -> Result<void> {
          expect_next(tensor.fqn);
          if (const char* difference = difference_of(tensor)) note(tensor.fqn, difference);
          return {};
        },
        [this](const CatalogValue& value) -> Result<void> {
          expect_next(value.fqn);
          const CatalogValue* other = pickle_.find_value(value.fqn);
          if (other == nullptr) note(value.fqn, "the pickle has no such value");
          if (other != nullptr && !is_same_place(value.location, other->location)) note(value.fqn, "another place");
          return {};
        });
    if (!walked) problems_.push_back(walked.error());
    // for_each() has checked the number of keys against the compact catalog's own.
    if (walked && compact.key_count() != pickle_.keys.size()) {
      problems_.push_back(Error(ErrorCode::kCorrupt, "the compact catalog has another number of keys than the pickle")
                              .expected(std::to_string(pickle_.keys.size()))
                              .actual(std::to_string(compact.key_count())));
    }
    return std::move(problems_);
  }

 private:
  void note(std::string_view fqn, const char* difference) {
    if (problems_.size() >= problems_max_) return;
    problems_.push_back(Error(ErrorCode::kCorrupt, "the compact catalog of the metadata differs from its pickle")
                            .key(fqn)
                            .expected("the entry of the pickle")
                            .actual(difference));
  }

  // The keys have the order of the pickle: a key that comes twice would hide a key that is missing.
  void expect_next(std::string_view fqn) {
    if (next_key_ < pickle_.keys.size()) {
      const Catalog::KeyRef ref = pickle_.keys[next_key_];
      const std::string& other = ref.is_tensor ? pickle_.tensors[ref.index].fqn : pickle_.values[ref.index].fqn;
      if (fqn != other) note(fqn, "a key at another place in the order");
    }
    ++next_key_;
  }

  std::string_view file_in_pickle(const ItemLocation& location) const {
    return location.length == 0 ? std::string_view() : pickle_.files[location.file];
  }

  bool is_same_place(const ItemLocation& compact, const ItemLocation& pickle) const {
    if (compact.length != pickle.length) return false;
    return compact.length == 0 ||
           (compact.offset == pickle.offset && record_.files[compact.file].name == file_in_pickle(pickle));
  }

  static bool are_equal(const SharedExtents& a, const SharedExtents& b) {
    return a == nullptr || b == nullptr ? a == b : *a == *b;
  }

  // Null if the tensor is equal in both.
  const char* difference_of(const CatalogTensor& tensor) const {
    const CatalogTensor* other = pickle_.find_tensor(tensor.fqn);
    if (other == nullptr) return "the pickle has no such tensor";
    if (tensor.dtype != other->dtype) return "another dtype";
    if (!(tensor.shape == other->shape)) return "another shape";
    if (tensor.requires_grad != other->requires_grad) return "another requires_grad";
    if (!are_equal(tensor.strides, other->strides)) return "other strides";
    if (tensor.chunk_count() != other->chunk_count()) return "another number of chunks";
    // The compact catalog has its chunks sorted by box, and chunks of one box in the order of the metadata.
    std::vector<std::size_t> order(other->chunk_count());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t width = 2 * tensor.shape.size();
    const auto box_of = [width](const CatalogTensor& of, std::size_t chunk) {
      return std::span(of.boxes).subspan(chunk * width, width);
    };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const auto box_a = box_of(*other, a), box_b = box_of(*other, b);
      return std::lexicographical_compare(box_a.begin(), box_a.end(), box_b.begin(), box_b.end());
    });
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (!std::ranges::equal(box_of(tensor, i), box_of(*other, order[i]))) return "other chunks";
      if (!is_same_place(tensor.locations[i], other->locations[order[i]])) return "a chunk at another place";
    }
    return nullptr;
  }

  const manifest::CommitRecord& record_;
  const Catalog& pickle_;
  std::size_t problems_max_;
  std::size_t next_key_ = 0;  // of the pickle
  std::vector<Error> problems_;
};

}  // namespace

std::vector<Error> compare_catalogs(const storage::Storage& storage, const std::string& metadata_name,
                                    const Catalog& pickle, std::size_t problems_max) {
  const Result<std::optional<LazyMetadata::Opened>> opened = LazyMetadata::open(storage, metadata_name);
  std::vector<Error> problems;
  if (!opened) {
    problems.push_back(opened.error());
  } else if (*opened) {
    problems = CatalogComparison((*opened)->record, pickle, problems_max).run((*opened)->metadata->compact());
  }
  for (Error& problem : problems) problem = std::move(problem).file(metadata_name);
  return problems;
}

}  // namespace cairn::checkpointer
