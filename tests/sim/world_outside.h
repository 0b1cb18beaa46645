/// The part of a world that is outside of its processes: the environment "outside" and the reward
/// "outside", which scripted workers answer, and a model folder with a chat template.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "graph/base/random.h"
#include "graph/outside.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {

/// Adds the environment and the reward to the catalog.
void add_outside(Catalog& catalog);
/// The lines of a tenant's table that choose environment, rewards and chat.
std::string outside_lines(const WorldSpec& spec, RandomStream& random);
/// The scripted outside with the faults of the world. Each look for answers takes time.
std::shared_ptr<Outside> make_troubled_outside(const WorldSpec& spec);
/// The model of the other worlds with a chat template.
std::filesystem::path chat_folder();

}  // namespace primerl::sim
