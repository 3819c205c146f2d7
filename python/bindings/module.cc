// The extension module cairn._engine: the C++ engine as Python sees it.
#include <cairn/version.h>

#include <nanobind/nanobind.h>

NB_MODULE(_engine, m) { m.attr("__version__") = nanobind::str(cairn::kVersion.data(), cairn::kVersion.size()); }
