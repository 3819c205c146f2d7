// NameInFolder: a name directly below a folder that a descriptor has open, as the calls of the *at family take it.
#pragma once

#include <string>

namespace cairn::storage {

struct NameInFolder {
  int folder = -1;  // not owned
  std::string name;
};

}  // namespace cairn::storage
