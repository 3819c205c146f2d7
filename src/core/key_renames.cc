#include "core/key_renames.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace cairn {
namespace {

// Whether `text` is a position as text: a rename may have cut or joined the digits of positions.
bool is_number(std::string_view text) {
  constexpr std::size_t kDigitsMax = 18;
  const bool has_digits = !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
  return has_digits && text.size() <= kDigitsMax && (text.size() == 1 || text[0] != '0');
}

// The texts between the stars of a pattern; `\` quotes a character.
std::vector<std::string> split_at_stars(std::string_view pattern) {
  std::vector<std::string> texts(1);
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '*') {
      texts.emplace_back();
      continue;
    }
    if (pattern[i] == '\\' && i + 1 < pattern.size()) ++i;
    texts.back().push_back(pattern[i]);
  }
  return texts;
}

// A part of a new name: `text` in place of the characters [begin, end) of the old name, or these characters themselves.
struct Piece {
  std::size_t begin;
  std::size_t end;
  std::optional<std::string_view> text;
};

std::vector<Piece> replace_prefix(std::string_view key, std::string_view from, std::string_view to) {
  if (!key.starts_with(from)) return {};
  const bool ends_at_step = from.empty() || from.back() == '.' || key.size() == from.size() || key[from.size()] == '.';
  if (!ends_at_step) return {};
  const bool drops_dot = to.empty() && !from.empty() && from.back() != '.' && key.size() > from.size();
  const std::size_t end = from.size() + (drops_dot ? 1 : 0);
  return {{0, end, to}, {end, key.size(), std::nullopt}};
}

// `from` has at least two texts.
std::vector<Piece> replace_pattern(std::string_view key, const std::vector<std::string>& from,
                                   const std::vector<std::string>& to) {
  const std::string& last = from.back();
  if (!key.starts_with(from[0]) || !key.ends_with(last) || key.size() < from[0].size() + last.size()) return {};
  std::vector<Piece> pieces{{0, from[0].size(), to[0]}};
  const std::string_view before_last = key.substr(0, key.size() - last.size());
  for (std::size_t i = 1; i < from.size(); ++i) {
    const std::size_t run = pieces.back().end;
    const std::size_t found = i + 1 == from.size() ? before_last.size() : before_last.find(from[i], run);
    if (found == std::string_view::npos) return {};
    pieces.push_back({run, found, std::nullopt});
    pieces.push_back({found, found + from[i].size(), to[i]});
  }
  return pieces;
}

// A name, and for each character its part in the path.
struct MarkedName {
  enum class Mark : char { kText, kDivider, kPosition };  // kPosition: a digit of a position in a list
  std::string text;
  std::vector<Mark> marks;
  std::vector<std::int32_t> origins;  // the step of the old path; -1 for a character of a new text

  explicit MarkedName(const Path& path) {
    for (std::size_t i = 0; i < path.size(); ++i) {
      if (i > 0) add(".", Mark::kDivider, -1);
      const auto origin = static_cast<std::int32_t>(i);
      if (const auto* name = std::get_if<std::string>(&path[i])) {
        add(*name, Mark::kText, origin);
      } else {
        add(std::to_string(std::get<std::int64_t>(path[i])), Mark::kPosition, origin);
      }
    }
  }
  MarkedName() = default;

  void add(std::string_view added, Mark mark, std::int32_t origin) {
    text.append(added);
    marks.insert(marks.end(), added.size(), mark);
    origins.insert(origins.end(), added.size(), origin);
  }
  void add_part(const MarkedName& other, std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) add(other.text.substr(i, 1), other.marks[i], other.origins[i]);
  }

  // Adds `added` in place of the characters [begin, end) of `old`.
  void add_replacement(std::string_view added, const MarkedName& old, std::size_t begin, std::size_t end,
                       bool is_nested) {
    std::vector<Mark> dots;
    for (std::size_t i = begin; i < end; ++i) {
      if (old.text[i] == '.') dots.push_back(old.marks[i]);
    }
    const bool pairs = static_cast<std::size_t>(std::count(added.begin(), added.end(), '.')) == dots.size();
    std::size_t dot = 0;
    for (const char c : added) {
      Mark mark = Mark::kText;
      if (c == '.') mark = pairs ? dots[dot++] : (is_nested ? Mark::kDivider : Mark::kText);
      add(std::string_view(&c, 1), mark, -1);
    }
  }

  KeyName name(const Path& old) const {
    KeyName name{text, {}};
    Path& path = name.path;
    for (std::size_t begin = 0; begin <= text.size();) {
      std::size_t end = begin;
      bool is_position = true;
      while (end < text.size() && marks[end] != Mark::kDivider) is_position &= marks[end++] == Mark::kPosition;
      const std::string step = text.substr(begin, end - begin);
      if (is_position && is_number(step)) {
        path.emplace_back(static_cast<std::int64_t>(std::stoll(step)));
      } else {
        path.emplace_back(step);
      }
      const std::int32_t origin = begin < end ? origins[begin] : -1;
      const bool is_kept = origin >= 0 && path.back() == old[static_cast<std::size_t>(origin)];
      name.origins.push_back(is_kept ? origin : -1);
      begin = end + 1;
    }
    return name;
  }
};

}  // namespace

Result<KeyRenames> KeyRenames::make(std::span<const KeyRename> renames) {
  KeyRenames made;
  for (const KeyRename& rename : renames) {
    Rule& rule = made.rules_.emplace_back(Rule{rename, split_at_stars(rename.from), split_at_stars(rename.to)});
    if (rule.from.size() == rule.to.size()) continue;
    return Error(ErrorCode::kInvalidArgument, "both sides of a rename must have equally many stars")
        .expected(std::to_string(rule.from.size() - 1) + " stars in the new name")
        .actual(rename.from + "=" + rename.to);
  }
  return made;
}

Result<KeyName> KeyRenames::apply(KeyName key) {
  for (Rule& rule : rules_) {
    const std::vector<Piece> pieces = rule.from.size() == 1 ? replace_prefix(key.fqn, rule.from[0], rule.to[0])
                                                            : replace_pattern(key.fqn, rule.from, rule.to);
    if (pieces.empty()) continue;
    ++rule.uses;
    const MarkedName old(key.path);
    MarkedName name;
    for (const Piece& piece : pieces) {
      if (piece.text) {
        name.add_replacement(*piece.text, old, piece.begin, piece.end, key.path.size() > 1);
      } else {
        name.add_part(old, piece.begin, piece.end);
      }
    }
    if (name.text.empty()) {
      return Error(ErrorCode::kInvalidArgument, "a rename leaves an empty name")
          .key(key.fqn)
          .actual(rule.rename.from + "=" + rule.rename.to);
    }
    return name.name(key.path);
  }
  key.origins.resize(key.path.size());
  std::iota(key.origins.begin(), key.origins.end(), 0);
  return key;
}

const KeyRename* KeyRenames::first_unused() const {
  const auto found = std::find_if(rules_.begin(), rules_.end(), [](const Rule& rule) { return rule.uses == 0; });
  return found == rules_.end() ? nullptr : &found->rename;
}

}  // namespace cairn
