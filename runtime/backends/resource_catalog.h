/// The catalogs of this build: everything that a graph file may name. Torch-free and used by both
/// programs, so the control plane checks exactly what the worker will make.
#pragma once

#include <string>
#include <vector>

#include "graph/catalog.h"

namespace primerl {

/// Every (kind, backend) of `[resource.x]` with its options; backends.cc makes them.
std::vector<ResourceContract> resource_contracts();

/// The facts of a Hugging Face folder's config.json that the checker needs.
Result<ModelFacts> read_model_facts(const std::string& folder);

/// Actors, messages, resources, environments and model facts; valid as long as the program runs.
const Catalog& full_catalog();

/// The text in a record about the code that made it: "0.1.0", or "0.1.0 with word_games 1.0
/// (1a2b3c4d)", where the number is the CRC-32C of a plugin's file.
std::string program_text(const Catalog& catalog);

}  // namespace primerl
