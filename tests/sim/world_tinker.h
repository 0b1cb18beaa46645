/// The part of a world that a client of Tinker's SDK adds: a tenant that it trains, the options of
/// the tinker node, and the client itself, whose requests follow from the world's number.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "graph/outside.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {

/// Draws what the world has, with random numbers of its own.
void add_tinker(WorldSpec& spec);
/// The table of the tenant that the client trains.
std::string tinker_table(const WorldSpec& spec);
/// The options of the tinker node, as `--set`s.
std::vector<std::string> tinker_sets(const WorldSpec& spec);

/// A client that makes sessions, models, passes, updates, snapshots, samplers and samples. It sends
/// requests of a model out of order, repeats some, leaves before some replies, uses names that are
/// gone, and begins a new session when requests fail.
std::shared_ptr<Outside> make_world_tinker(const WorldSpec& spec);

}  // namespace primerl::sim
