/// Single faults in the text of a graph file, such as a person makes, with the lines to which an
/// error may point. Made from the text only, without randomness.
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
  kReversed,    // an edge in the wrong direction
  kMoved,       // an edge in the other list
  kMistyped,    // a value of another type, or a word that is not a valid choice
  kOutOfRange,  // a number at or beyond an end of its range
  kRemoved,     // a table or an edge is missing
};
std::string_view to_string(FaultKind kind);

struct GraphFault {
  FaultKind kind = FaultKind::kMisspelt;
  std::string what;     // "line 23: key 'kind' misspelt"
  std::string text;     // of the whole file
  std::set<int> lines;  // lines of `text`, from 1, to which an error may point
  std::string word;     // an error at another line is also accepted if it quotes this word; may be
                        // empty
};

/// Every possible fault in the lines of `text`, in the order of kinds and lines. `text` has the
/// layout of the examples: one key or edge per line, tables in brackets.
std::vector<GraphFault> graph_faults(std::string_view text);

}  // namespace primerl::testing
