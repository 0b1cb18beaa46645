#include "graph/value.h"

#include <algorithm>

namespace primerl {

const Entry* Table::find(std::string_view key) const {
  const auto found = std::find_if(entries.begin(), entries.end(),
                                  [key](const Entry& entry) { return entry.key == key; });
  return found == entries.end() ? nullptr : &*found;
}

Entry* Table::find(std::string_view key) {
  return const_cast<Entry*>(std::as_const(*this).find(key));
}

std::string_view Value::kind() const {
  if (is_bool()) return "a boolean";
  if (is_integer()) return "an integer";
  if (is_number()) return "a decimal number";
  if (is_string()) return "a string";
  if (is_array()) return "a list";
  if (is_table()) return "a table";
  return "a date or time";
}

}  // namespace primerl
