#include "save_plan/catalog_builder.h"

namespace cairn::save_plan {

bool CatalogBuilder::add(const plan::LocalItem& item, const Box& box, const ItemLocation& location) {
  if (item.kind == plan::LocalItem::Kind::kValue) {
    catalog_.keys.push_back({false, static_cast<std::uint32_t>(catalog_.values.size())});
    catalog_.values.push_back({std::string(item.fqn), location});
    return true;
  }
  const auto [number, is_new] = numbers_.number_of(item.fqn);
  if (is_new) {
    catalog_.keys.push_back({true, number});
    CatalogTensor& tensor = catalog_.tensors.emplace_back();
    tensor.fqn = item.fqn;
    tensor.dtype = item.dtype;
    tensor.shape = item.shape;
    tensor.requires_grad = item.requires_grad;
    tensor.strides = strides_[item.strides];
  }
  CatalogTensor& tensor = catalog_.tensors[number];
  tensor.boxes.insert(tensor.boxes.end(), box.offsets().begin(), box.offsets().end());
  tensor.boxes.insert(tensor.boxes.end(), box.sizes().begin(), box.sizes().end());
  tensor.locations.push_back(location);
  return is_new;
}

}  // namespace cairn::save_plan
