/// The values of a prime-rl configuration as `import` reads and writes them. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/config/diagnostic.h"
#include "graph/value.h"

namespace primerl {

/// A value of the file with its key: a leaf, or a table without keys.
struct Leaf {
  std::string key;
  const Value* value = nullptr;
  Position position;
};
/// In the order of the file. `root` must stay valid while they are used.
std::vector<Leaf> leaves_of(const Table& root);

/// The value as TOML text.
std::string toml_of(const Value& value);
/// "reverse_text" for "primeintellect/reverse-text" and "reverse-text-v1".
std::string environment_name(std::string id);
/// A graph's name: it becomes part of a folder's name.
std::string file_name(std::string_view text);

}  // namespace primerl
