#include "checkpointer/catalog_builder.h"

#include <string>

namespace cairn::checkpointer {

void CatalogBuilder::add(const plan::LocalItem& item, const Box& box, const Path& path, const ItemLocation& location) {
  const auto add_path = [&] {
    if (!path.empty()) catalog_.paths.emplace_back(std::string(item.fqn), path);
  };
  if (item.kind == plan::LocalItem::Kind::kValue) {
    catalog_.keys.push_back({false, static_cast<std::uint32_t>(catalog_.values.size())});
    catalog_.values.push_back({std::string(item.fqn), location});
    add_path();
    return;
  }
  const auto [found, fresh] = tensors_.try_emplace(item.fqn, catalog_.tensors.size());
  if (fresh) {
    catalog_.keys.push_back({true, static_cast<std::uint32_t>(catalog_.tensors.size())});
    CatalogTensor& tensor = catalog_.tensors.emplace_back();
    tensor.fqn = item.fqn;
    tensor.dtype = item.dtype;
    tensor.shape = item.shape;
    tensor.requires_grad = item.requires_grad;
    add_path();
  }
  CatalogTensor& tensor = catalog_.tensors[found->second];
  for (const std::int64_t offset : box.offsets()) tensor.boxes.push_back(offset);
  for (const std::int64_t size : box.sizes()) tensor.boxes.push_back(size);
  tensor.locations.push_back(location);
}

}  // namespace cairn::checkpointer
