// KeyTree: the keys of a checkpoint as an indented tree, split at the dots of their names.
//
// A folder with one child is joined with the child ("model.embedding.weight").
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

struct TreeLine {
  std::size_t depth = 0;
  std::string name;                // without the folders above
  std::optional<std::size_t> key;  // the number given to add(); nullopt for a folder that is not a key
};

class KeyTree {
 public:
  void add(std::string_view fqn, std::size_t key);
  // The lines in the order of add(), but the keys of a folder stay together.
  std::vector<TreeLine> lines() const;

 private:
  struct Node {
    std::string name;
    std::optional<std::size_t> key;
    std::map<std::string, std::size_t, std::less<>> child_by_name;
    std::vector<std::size_t> children;  // in the order of add()
  };
  std::size_t child(std::size_t parent, std::string_view name);

  std::vector<Node> nodes_ = std::vector<Node>(1);  // the first is the root
};

}  // namespace cairn::cli
