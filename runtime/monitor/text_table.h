/// TextTable: rows of cells as lines of text, each column as wide as its widest cell on a
/// terminal. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace primerl {

class TextTable {
 public:
  /// The first `num_left` columns are left-aligned, the others right-aligned.
  TextTable(std::vector<std::string> heads, size_t num_left)
      : num_left_(num_left), rows_{std::move(heads)} {}
  /// One cell for each head.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;

 private:
  const size_t num_left_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace primerl
