/// Object files: the symbols that a compiler left in them, read from ELF.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace primerl::tidy {

struct Symbol {
  std::string name;      // mangled
  bool is_weak = false;  // may be defined in many objects, as long as all say the same
  bool is_data = false;  // a table of virtual functions, a type's name, an inline variable
  uint64_t size = 0;
};

/// What an object defines for others. Empty, when it is no ELF file of 64 bits.
std::vector<Symbol> symbols_of(const std::string& object);

/// Every object below a folder of the build that its compile_commands.json names, sorted.
std::vector<std::string> objects_below(const std::string& folder);

/// "graph/options.cc" of "graph/CMakeFiles/primerl_graph.dir/options.cc.o": one source may be
/// compiled for several targets.
std::string source_of(const std::string& object);

/// A sentence for each name of ours that two objects of different sources define (only one may), or
/// that is data and has another size in another object (then it is of another type there).
std::vector<std::string> odd_definitions(const std::vector<std::string>& objects);

}  // namespace primerl::tidy
