#include "format/torch_file/storage_renamer.h"

#include <string>

namespace cairn::torch_file {

Result<void> StorageRenamer::write_persistent(pickle::Writer& writer, const pickle::Graph& graph, pickle::Node id) {
  constexpr std::size_t kKeyPlace = 2;
  constexpr std::size_t kPartCount = 5;
  if (is_module_class(graph, id)) return pickle::write_node(writer, graph, module_class(graph, id));
  CAIRN_TRY_ASSIGN(const StorageNode storage, read_storage_node(graph, id));
  const bool is_view = storage.view_offset != 0 || storage.view_bytes != storage.bytes;
  if (is_view) return Error(ErrorCode::kUnsupported, "a view of a storage, as torch before 1.6 wrote it");
  CAIRN_TRY_ASSIGN(const std::size_t number, number_of_(storage));
  writer.mark();
  std::size_t place = 0;
  for (const pickle::Node part : graph.elements(id)) {
    if (place == kKeyPlace) {
      writer.text(std::to_string(number));
    } else if (place < kPartCount) {
      CAIRN_TRY(pickle::write_node(writer, graph, part));
    }
    ++place;
  }
  writer.tuple_since_mark();
  writer.persistent();
  return {};
}

}  // namespace cairn::torch_file
