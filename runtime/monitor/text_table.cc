#include "runtime/monitor/text_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace primerl {

std::string TextTable::text() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i)
      line += i < num_left_ ? fmt::format("{}{:<{}}", i == 0 ? "" : "  ", row[i], widths[i])
                            : fmt::format("  {:>{}}", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace primerl
