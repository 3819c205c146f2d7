// The torch.save archives of fuzz/corpus/torch_file, which torch itself has written.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <span>
#include <string>

#include "core/byte_source.h"
#include "format/zip/directory.h"

namespace cairn::torch_file {

inline std::string golden(const std::string& name) {
  std::ifstream file("fuzz/corpus/torch_file/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

// `archive`, whose pickle ends with a call, with an empty dict as the state of the call's result. The CRC of the pickle
// becomes 0, "not computed".
inline std::string with_a_state(std::string archive) {
  const std::uint64_t directory = zip::read_directory(MemorySource(std::as_bytes(std::span(archive)))).value().offset;
  archive.replace(directory + 16, 4, 4, '\0');
  for (std::size_t i = 0; i + 4 <= directory; ++i) {
    const bool is_end = archive[i] == 'R' && archive[i + 1] == 'q' && archive[i + 3] == '.';
    if (is_end) return archive.replace(i + 1, 2, "}b");  // the store into the memo gives way to the state
  }
  ADD_FAILURE() << "the pickle does not end with a call";
  return archive;
}

}  // namespace cairn::torch_file
