// Prints the keys of a checkpoint, of Cairn or of stock torch.distributed.checkpoint, with the first numbers of each
// float32 tensor. Needs no torch and no Python.
//
//   02_read_torch_checkpoint DIR
#include <cairn/cairn.h>

#include <algorithm>
#include <cstdio>
#include <vector>

namespace {

constexpr std::int64_t kShown = 4;

// Returns the box of the first few elements in the tensor's last dimension.
cairn::Result<cairn::Box> first_numbers(const cairn::CatalogTensor& tensor) {
  cairn::Extents offsets(tensor.shape.size(), 0);
  cairn::Extents sizes(tensor.shape.size(), 1);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] = std::min<std::int64_t>(tensor.shape[i], i + 1 == sizes.size() ? kShown : 1);
  }
  return cairn::Box::make(std::move(offsets), std::move(sizes));
}

cairn::Result<void> print_tensor(const cairn::Checkpoint& checkpoint, const cairn::CatalogTensor& tensor) {
  std::printf("%s: %s %s", tensor.fqn.c_str(), std::string(name_of(tensor.dtype)).c_str(),
              to_string(tensor.shape).c_str());
  if (tensor.dtype == cairn::DType::kFloat32) {
    CAIRN_TRY_ASSIGN(const cairn::Box box, first_numbers(tensor));
    std::vector<float> numbers(static_cast<std::size_t>(box.element_count()));
    const auto target = cairn::TensorView::contiguous(numbers.data(), tensor.dtype, box.sizes());
    CAIRN_TRY(checkpoint.read(tensor.fqn, box, target));  // reads and checks only the bytes of the box
    for (const float number : numbers) std::printf(" %g", static_cast<double>(number));
  }
  std::printf("\n");
  return {};
}

cairn::Result<void> print(const std::filesystem::path& directory) {
  CAIRN_TRY_ASSIGN(const cairn::Checkpoint checkpoint, cairn::open(directory));
  for (const cairn::CatalogTensor& tensor : checkpoint.catalog().tensors) CAIRN_TRY(print_tensor(checkpoint, tensor));
  for (const cairn::CatalogValue& entry : checkpoint.catalog().values) {
    // An object of an unknown class is returned as a description: Cairn never runs code from the file.
    CAIRN_TRY_ASSIGN(const cairn::Value value, checkpoint.read_value(entry.fqn));
    std::printf("%s: %s\n", entry.fqn.c_str(), to_string(value).c_str());
  }
  return {};
}

}  // namespace

int main(int count, char** words) {
  if (count != 2) return std::fprintf(stderr, "usage: %s DIR\n", words[0]), 2;
  const cairn::Result<void> printed = print(words[1]);
  if (!printed) std::fprintf(stderr, "%s\n", printed.error().what());
  return printed ? 0 : 1;
}
