// ElementSink: takes the checked elements of reads whose targets are in the memory of a device.
#pragma once

#include <cairn/result.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "data_file/read_pieces.h"
#include "os/parallel.h"

namespace cairn::data_file {

class ElementSink {
 public:
  virtual ~ElementSink() = default;

  // Takes elements of a read, in the order of the file and in the dtype of the target: those from file offset `begin`
  // of the read's region on. Elements outside the region are ignored. `elements` may change after the call. A wait
  // ends soon after `stop` is set, with kCancelled. Called from several threads.
  virtual Result<void> place(const TensorRead& read, std::int64_t begin, std::span<const std::byte> elements,
                             const os::StopFlag& stop) = 0;
};

}  // namespace cairn::data_file
