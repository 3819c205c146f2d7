// KeyRenames: new names for keys, by prefixes and patterns (cairn/catalog.h).
//
// Pure. One thread at a time: apply() counts the uses of each rename.
#pragma once

#include <cairn/catalog.h>
#include <cairn/result.h>
#include <cairn/state_dict.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace cairn {

struct KeyName {
  std::string fqn;
  Path path;  // fqn_of(path) == fqn; not empty
  // For each step of `path` the step of the old path that it is, whole and unchanged; -1 for a new step. Set by
  // KeyRenames::apply().
  std::vector<std::int32_t> origins = {};
};

class KeyRenames {
 public:
  // kInvalidArgument if `from` and `to` of a rename differ in the number of stars.
  static Result<KeyRenames> make(std::span<const KeyRename> renames);

  // The new name of `key`; an equal name if no rename applies. Of the path, the steps that the rename keeps stay. A dot
  // in a text that replaces a text with equally many dots divides the path where the replaced dot does; otherwise every
  // dot of the new text divides a path of several steps, and no dot divides a path of one step. kInvalidArgument for an
  // empty new name.
  Result<KeyName> apply(KeyName key);

  // The first rename that has applied to no key.
  const KeyRename* first_unused() const;

 private:
  struct Rule {
    KeyRename rename;
    std::vector<std::string> from;  // the texts between the stars; a single text is a prefix
    std::vector<std::string> to;    // equally many
    std::size_t uses = 0;
  };
  std::vector<Rule> rules_;
};

}  // namespace cairn
