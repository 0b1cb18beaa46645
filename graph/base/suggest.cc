#include "graph/base/suggest.h"

#include <algorithm>
#include <vector>

namespace primerl {
namespace {

// Optimal string alignment distance, with three rows of the table.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string lowered(std::string_view text) {
  std::string lower(text);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return lower;
}

}  // namespace

std::string nearest_name(std::string_view word, std::span<const std::string> names) {
  const size_t reach = word.size() <= 3 ? 1 : 2;
  const std::string lower = lowered(word);
  size_t best = reach + 1;
  std::string nearest;
  for (const auto& name : names) {
    const size_t gap =
        name.size() > word.size() ? name.size() - word.size() : word.size() - name.size();
    if (gap > reach) continue;
    const size_t distance = edit_distance(lower, lowered(name));
    if (distance >= best) continue;
    best = distance;
    nearest = name;
  }
  return nearest;
}

std::string join_names(std::span<const std::string> names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 == names.size() ? " and " : ", ";
    text += names[i].empty() ? "\"\"" : names[i];
  }
  return text;
}

}  // namespace primerl
