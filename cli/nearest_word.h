// nearest_word: the known word that a misspelled word probably stands for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// Returns the first known word that begins with `word` (at least two characters), otherwise the first known word with
// the smallest edit distance: insertions, deletions and replacements of a character, and exchanges of two neighbours.
// Nullopt if more than a third of the longer word would change (for words of up to five characters: more than one
// character).
std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace cairn::cli
