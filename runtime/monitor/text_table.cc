#include "runtime/monitor/text_table.h"

#include <algorithm>

#include "graph/base/terminal_text.h"

namespace primerl {

std::string TextTable::text() const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], num_columns(row[i]));
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - num_columns(row[i]), ' ');
      line += i < num_left_ ? (i == 0 ? "" : "  ") + row[i] + padding : "  " + padding + row[i];
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace primerl
