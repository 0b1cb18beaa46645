/// The generated reference: markdown pages made from the catalog and the option registry. A test
/// compares the committed docs/reference/*.md with them.
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
