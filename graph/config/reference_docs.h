/// The generated reference: markdown pages made from the catalog and the option registry. The
/// committed docs/reference/*.md are compared with these in a test.
#pragma once

#include <string>
#include <vector>

#include "graph/catalog.h"

namespace primerl {

struct ReferencePage {
  std::string file;  // "actors.md"
  std::string text;
};

/// graph-file.md, actors.md, messages.md, resources.md, environments.md and rewards.md.
std::vector<ReferencePage> reference_pages(const Catalog& catalog);

}  // namespace primerl
