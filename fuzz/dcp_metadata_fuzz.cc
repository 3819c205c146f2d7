// Reads any bytes as a `.metadata`: every chunk of the catalog must lie in its tensor, and the catalog, written by
// Cairn, must read equal.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "decoding_bounds.h"
#include "format/dcp/metadata_decoder.h"
#include "format/dcp/metadata_template.h"

namespace dcp_metadata_fuzz {

namespace {

void require(bool claim) {
  if (!claim) std::abort();
}

void check(const cairn::Catalog& catalog) {
  require(catalog.keys.size() == catalog.tensors.size() + catalog.values.size());
  for (const cairn::CatalogTensor& tensor : catalog.tensors) {
    require(catalog.find_tensor(tensor.fqn) == &tensor);
    require(tensor.boxes.size() == tensor.chunk_count() * 2 * tensor.shape.size());
    require(!tensor.strides || tensor.strides->size() <= cairn::kDimensionsMax);
    for (std::size_t i = 0; i < tensor.chunk_count(); ++i) {
      require(tensor.chunk(i).within(tensor.shape));
      require(tensor.locations[i].length == 0 || tensor.locations[i].file < catalog.files.size());
    }
  }
}

cairn::Result<cairn::dcp::DecodedMetadata> decode(std::span<const std::byte> input) {
  const cairn::fuzz::DecodingBounds bounds(input.size());
  return cairn::dcp::decode_metadata(input);
}

bool equal(const cairn::CatalogTensor& a, const cairn::CatalogTensor& b) {
  return a.fqn == b.fqn && a.dtype == b.dtype && a.shape == b.shape && a.requires_grad == b.requires_grad &&
         a.boxes == b.boxes && (a.strides && b.strides ? *a.strides == *b.strides : a.strides == b.strides);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace dcp = cairn::dcp;
  const auto first = decode({reinterpret_cast<const std::byte*>(data), size});
  if (!first) return 0;
  require(first->pickle_bytes <= size);
  check(first->catalog);
  const auto layout = dcp::MetadataTemplate::make(first->catalog);
  if (!layout) return 0;
  const std::string pickle = layout->render("save", "checkpoint", first->catalog.files);
  const auto second = decode(std::as_bytes(std::span(pickle)));
  if (!second) {
    // Parts kept by reference in the first pickle are written out, or as references to equal parts, in the second
    // pickle.
    require(second.error().code() == cairn::ErrorCode::kUnsupported);
    return 0;
  }
  check(second->catalog);
  require(second->pickle_bytes == pickle.size());
  require(second->catalog.paths == first->catalog.paths);
  require(second->catalog.tensors.size() == first->catalog.tensors.size());
  for (std::size_t i = 0; i < second->catalog.tensors.size(); ++i) {
    require(equal(first->catalog.tensors[i], second->catalog.tensors[i]));
  }
  return 0;
}

}  // namespace dcp_metadata_fuzz
