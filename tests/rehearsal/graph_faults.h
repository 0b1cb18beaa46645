/// Single faults for the text of a graph file: each is one mistake of a person, with the lines
/// where an error message about it helps. They follow from the text; nothing is random.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace primerl::testing {

enum class FaultKind {
  kMisspelt,    // a key, table, node, port or word with a wrong letter
  kMissing,     // a line is missing
  kDuplicated,  // a line written twice
  kReversed,    // an edge with its ends swapped
  kMoved,       // an edge in the other list
  kMistyped,    // a value of another type, or a word that is not a valid choice
  kOutOfRange,  // a number at or beyond an end of its range
  kRemoved,     // a table or an edge is missing
};
std::string_view to_string(FaultKind kind);

struct GraphFault {
  FaultKind kind = FaultKind::kMisspelt;
  std::string what;     // for example "line 23: key 'kind' misspelt"
  std::string text;     // the whole file
  std::set<int> lines;  // in `text`, from 1: lines where an error points at the mistake
  std::string word;     // an error elsewhere that quotes this word is good too; may be empty
};

/// Every fault that the lines of `text` can have, in the order of kinds and lines. `text` has the
/// layout of the examples: one key or edge per line, table headers in brackets.
std::vector<GraphFault> graph_faults(std::string_view text);

}  // namespace primerl::testing
