// ConvertPlan: the keys of a conversion: which keys of the source become which keys of the target, with which dtype.
//
// Pure.
#pragma once

#include <cairn/catalog.h>
#include <cairn/convert.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/key_renames.h"
#include "core/nested_shape.h"

namespace cairn::checkpointer {

// A key of the target. Exactly one of `tensor` and `value` is set: the source, in the source's catalog.
struct ConvertKey {
  KeyName name;
  const CatalogTensor* tensor = nullptr;
  const CatalogValue* value = nullptr;
  DType dtype = DType::kFloat32;  // of the target; ignored for a value

  const std::string& source_fqn() const { return tensor != nullptr ? tensor->fqn : value->fqn; }
  // Bytes of the tensor's elements in the target; 0 for a value.
  std::uint64_t bytes() const;
};

struct ConvertPlan {
  std::vector<ConvertKey> keys;  // in the source's order
  std::vector<Conversion> conversions;
  // Tensors that `dtype` leaves alone, and converted tensors of 8 bits beside a tensor with their scales; by their keys
  // in the source.
  std::vector<std::string> unconverted;
  std::vector<std::string> scaled;
  // --- Of a file of torch.save; plan_conversion() leaves all this empty.
  // A tensor that is a key, or a part of the value or of the attributes under a key. `object` is equal for tensors that
  // stay one object in the target; 0: unknown.
  struct Part {
    std::size_t key = 0;  // in `keys`
    bool is_inside = false;
    std::uint64_t object = 0;
  };
  // Tensors that share elements, some of them parts of values.
  std::vector<std::vector<Part>> shared_inside;
  // Values with tensors that `dtype` leaves alone, by their keys in the source.
  std::vector<std::string> unconverted_inside;
  // The attributes of tensors that the target gets, by place in `keys`; and the keys in the source of tensors whose
  // attributes the target lacks.
  std::unordered_map<std::size_t, Value> attributes;
  std::vector<std::string> without_attributes;
  // Dicts and lists that the target has whole, with their Value::identity(); and places of dicts and lists that are one
  // object in the source, and several in the target.
  std::vector<std::pair<Path, std::uint64_t>> whole_containers;
  std::vector<std::string> separated;
  // ---
  // By the new places; `before` counts `keys`. Without the parts that the plan leaves out.
  NestedShape shape;
  bool has_paths = false;  // whether the source knows the nested places of its keys
};

// `source` outlives the plan; `shape` is of the source. The value under kNestedShapeKey is no key of the plan.
// kMissingKey if a pattern matches no key, or if a rename applies to no key. kInvalidArgument if two keys get the same
// name, if a rename puts a key into the place of another, if `options.dtype` is not a floating-point dtype, if the
// number of files is 0, or if an option is of another target format. kUnsupported if no conversion of a dtype exists.
Result<ConvertPlan> plan_conversion(const Catalog& source, const ConvertOptions& options,
                                    const NestedShape& shape = {});

}  // namespace cairn::checkpointer
