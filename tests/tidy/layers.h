/// Both tables of docs/design/architecture.md section 2 as data, and the reading of one file
/// against them.
#pragma once

#include <string>
#include <vector>

#include "tests/tidy/source_tree.h"

namespace primerl::tidy {

/// A folder of ours: what it may include. The longest folder that begins a path decides.
struct Layer {
  std::string folder;
  std::vector<std::string> may_include;  // beginnings of our paths
  std::vector<std::string>
      never_standard;                   // standard headers that hide what the layer must not see
  std::vector<std::string> never_ours;  // of what may_include would allow
};

/// A third party: the beginnings of its headers, and the files that may name it.
struct Fence {
  std::string party;
  std::vector<std::string> headers;
  std::vector<std::string> allowed_in;  // patterns of our paths
};

const std::vector<Layer>& layers();
const std::vector<Fence>& fences();

/// One line per illegal arrow: "actors/x.cc:3: ...".
std::vector<std::string> layer_faults(const SourceFile& file);

}  // namespace primerl::tidy
