/// The part of a world that a gateway and a judge add: HTTP clients whose requests follow from the
/// world's number, and the nodes and options of both.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "graph/base/random.h"
#include "graph/outside.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {

/// Draws what the world has, with random numbers of its own.
void add_clients(WorldSpec& spec);
/// The entries of a tenant's `reward` list that a judge gives; "" without a judge.
std::string judge_entries(const WorldSpec& spec, RandomStream& random);
/// The graph with a gateway, if the world has one.
std::string with_gateway(const WorldSpec& spec, std::string graph);
/// The options of both, as `--set`s.
std::vector<std::string> client_sets(const WorldSpec& spec);
/// Nodes for the place of the driver, of routers, and of engines of the judge: `, "judge"`.
std::string driver_nodes(const WorldSpec& spec);

/// Clients that ask for completions, chats, tokens and pages that do not exist; some repeat a
/// request, and some leave before the reply. Each look for answers takes time.
std::shared_ptr<Outside> make_world_clients(const WorldSpec& spec);

/// Calls `seen` with every call of `outside`, which is visible from outside of the actor.
std::shared_ptr<Outside> make_seen_outside(std::shared_ptr<Outside> outside,
                                           std::function<void(std::string_view)> seen);

}  // namespace primerl::sim
