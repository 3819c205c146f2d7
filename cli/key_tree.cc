#include "key_tree.h"

#include <utility>

namespace cairn::cli {
namespace {

// The rest of a deeper name stays unsplit: names come from files, and deeper levels help no reader.
constexpr std::size_t kDepthMax = 32;

}  // namespace

void KeyTree::add(std::string_view fqn, std::size_t key) {
  std::size_t node = 0;
  for (std::size_t depth = 1; depth < kDepthMax; ++depth) {
    const std::size_t dot = fqn.find('.');
    if (dot == std::string_view::npos) break;
    node = child(node, fqn.substr(0, dot));
    fqn.remove_prefix(dot + 1);
  }
  nodes_[child(node, fqn)].key = key;
}

std::size_t KeyTree::child(std::size_t parent, std::string_view name) {
  const auto found = nodes_[parent].child_by_name.find(name);
  if (found != nodes_[parent].child_by_name.end()) return found->second;
  const std::size_t index = nodes_.size();
  nodes_[parent].child_by_name.emplace(name, index);
  nodes_[parent].children.push_back(index);
  nodes_.emplace_back().name = name;
  return index;
}

std::vector<TreeLine> KeyTree::lines() const {
  struct Visit {
    std::size_t node;
    std::size_t depth;
  };
  std::vector<TreeLine> lines;
  std::vector<Visit> open;
  const auto push_children = [&](std::size_t node, std::size_t depth) {
    const std::vector<std::size_t>& children = nodes_[node].children;
    for (auto next = children.rbegin(); next != children.rend(); ++next) open.push_back({*next, depth});
  };
  push_children(0, 0);
  while (!open.empty()) {
    const Visit visit = open.back();
    open.pop_back();
    std::size_t node = visit.node;
    std::string name = nodes_[node].name;
    while (!nodes_[node].key && nodes_[node].children.size() == 1) {
      node = nodes_[node].children.front();
      name += "." + nodes_[node].name;
    }
    lines.push_back({visit.depth, std::move(name), nodes_[node].key});
    push_children(node, visit.depth + 1);
  }
  return lines;
}

}  // namespace cairn::cli
