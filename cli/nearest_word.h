// nearest_word: the known word that a misspelled one probably stands for.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cairn::cli {

// The first known word that `word` begins (two characters at least), else the first of those with the smallest edit
// distance: insertions, deletions and replacements of a character, and exchanges of two neighbours. Nullopt if more
// than a third of the longer word would change (of words of up to five characters: more than one character).
std::optional<std::string> nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace cairn::cli
