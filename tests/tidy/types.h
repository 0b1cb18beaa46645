/// Where the tree defines its types: what the compiler takes for one type wherever it is linked.
/// Left out is what has no name outside of its file: in functions and unnamed namespaces.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/tidy/source_tree.h"

namespace primerl::tidy {

struct TypeDefinition {
  std::string name;   // "primerl::Wiring", "primerl::Trace::Step"
  std::string place;  // "runtime/exec/wiring.h:18"
};

/// Classes, structs, unions and enums that are defined, not only declared. Specializations of
/// templates carry their arguments.
std::vector<TypeDefinition> types_of(const SourceFile& file);

/// Names that are defined in more than one file, with each place.
std::map<std::string, std::vector<std::string>> types_defined_twice(
    const std::vector<SourceFile>& files);

}  // namespace primerl::tidy
