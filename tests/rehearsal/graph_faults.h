/// Single faults put into the text of a graph file: one slip of a person each, with the lines at
/// which an error about it helps. Made from the text alone; no random choice.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace primerl::testing {

enum class FaultKind {
  kMisspelt,    // a key, table, node, port or word with a wrong letter
  kMissing,     // a line left out
  kDuplicated,  // a line written twice
  kReversed,    // an edge the other way round
  kMoved,       // an edge in the other list
  kMistyped,    // a value of another type, or a word that is no choice
  kOutOfRange,  // a number at or beyond an end of its range
  kRemoved,     // a table or an edge left out
};
std::string_view to_string(FaultKind kind);

struct GraphFault {
  FaultKind kind = FaultKind::kMisspelt;
  std::string what;     // "line 23: key 'kind' misspelt"
  std::string text;     // of the whole file
  std::set<int> lines;  // of `text`, from 1: where an error points at the slip
  std::string word;     // an error elsewhere that quotes it names the slip, too; may be empty
};

/// Every fault that the lines of `text` can have, in the order of kinds and lines. `text` is laid
/// out as the examples are: a key or an edge a line, tables in brackets.
std::vector<GraphFault> graph_faults(std::string_view text);

}  // namespace primerl::testing
