// ConvertPlan: the keys of a conversion: which keys of the source become which keys of the target, with which dtype.
//
// Pure.
#pragma once

#include <cairn/catalog.h>
#include <cairn/convert.h>
#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <vector>

#include "checkpointer/key_renames.h"
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
  // Values of a file of torch.save with tensors that share elements with other tensors, and with tensors that `dtype`
  // leaves alone; by their keys in the source. plan_conversion() leaves these lists empty.
  std::vector<std::string> copied_inside;
  std::vector<std::string> unconverted_inside;
  // Tensors of a file of torch.save with attributes, which no target has.
  std::vector<std::string> with_attributes;
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
