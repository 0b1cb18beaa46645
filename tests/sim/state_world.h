/// Worlds in which actors use everything that they save: many turns, kept sets, cancels, deadlines,
/// two tenants, every routing policy, engines and a router that die, faults of engine, learner and
/// disk, a person who pauses the engines, a resumed run, HTTP clients, judges. The number of a
/// world determines it.
///
/// A run makes a mark for everything that is visible from outside an actor: steps, messages with
/// their bytes, calls to what is outside of the process, lines, metrics, log lines, checkpoints,
/// counters, the end.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/virtual_executor.h"
#include "tests/sim/world_spec.h"

namespace primerl::sim {

/// After event `event` of a world, the group of `instance` is made again from its saved state,
/// which `change` may alter.
struct WorldCut {
  uint64_t event = 0;
  InstanceId instance;
  VirtualExecutor::ChangeState change;
};

struct WorldHooks {
  std::vector<WorldCut> cuts;  // by event
  /// The marks of another run; this one stops at the first mark that differs.
  const std::vector<uint64_t>* expected = nullptr;
  /// Called after every event, before its cuts; null = no call.
  std::function<void(VirtualExecutor& executor, uint64_t event)> look;
};

struct WorldRun {
  std::string fault;            // why there is no run, or why it was stopped
  std::vector<uint64_t> marks;  // in order; the last one is for the end
  uint64_t num_events = 0;
  bool differs = false;  // the marks differ from `expected`
  std::string end;       // for a person
  bool has_stalled = false;
  bool has_dead = false;  // a process was down at the end: it comes back after a number of events
};

std::shared_ptr<const Plan> world_plan(uint64_t world);
/// A description of the world for a person.
std::string describe_world(uint64_t world);
WorldRun run_world(uint64_t world, const WorldHooks& hooks = {});

}  // namespace primerl::sim
