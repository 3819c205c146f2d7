#include "load_outcome.h"

#include <string>
#include <unordered_set>

#include "errors.h"
#include "text.h"

namespace cairn::python {

nb::list conversions_of(const LoadReport& report) {
  nb::list conversions;
  for (const Conversion& conversion : report.conversions) {
    conversions.append(nb::make_tuple(to_str(conversion.fqn), static_cast<int>(conversion.saved),
                                      static_cast<int>(conversion.target)));
  }
  return conversions;
}

void rethrow_with_keys(const Error& error, const Checkpoint& checkpoint, const StateDict& state,
                       const LoadOptions& options) {
  if (error.code() != ErrorCode::kMissingKey) throw Error(error);
  const auto renamed = options.renames.empty() ? Result<std::vector<std::pair<std::string, std::string>>>({})
                                               : checkpoint.renamed_keys(options.renames);
  if (!renamed) throw Error(error);
  std::unordered_set<std::string> names;
  for (const auto& [name, key] : *renamed) names.insert(name);
  const auto is_there = [&](const std::string& fqn) {
    if (!options.renames.empty()) return names.contains(fqn);
    const Catalog& catalog = checkpoint.catalog();
    return catalog.find_tensor(fqn) != nullptr || catalog.find_value(fqn) != nullptr;
  };
  nb::list missing;
  for (const Entry& entry : state.entries()) {
    if (!is_there(entry.fqn)) missing.append(to_str(entry.fqn));
  }
  const nb::object exception = exception_of(error);
  // The failure may be of another rank.
  if (!missing.empty()) exception.attr("keys") = nb::tuple(missing);
  PyErr_SetObject(exception.type().ptr(), exception.ptr());
  throw nb::python_error();
}

}  // namespace cairn::python
