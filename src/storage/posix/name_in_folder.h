// NameInFolder: a name in an open folder, for the calls of the *at family.
#pragma once

#include <string>

namespace cairn::storage {

struct NameInFolder {
  int folder = -1;  // not owned
  std::string name;
};

}  // namespace cairn::storage
