/// A graph with four slots on the virtual clock: one tenant stays, guests join and leave at random
/// moments, as a control plane would let them. The program's actors, a scripted engine and a
/// scripted learner. Seed and case determine a world.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "graph/plan.h"
#include "runtime/exec/executor.h"

namespace primerl::sim {

enum class Guests {
  kNone,
  kPlain,
  kFaulty,   // messages to their actors fail, rarely
  kRemakes,  // groups are made anew from their saved state at random moments
  kAll,      // faults and remakes
};

struct HostedCase {
  uint64_t seed = 1;
  Guests guests = Guests::kPlain;
  /// The run ends when so many guests have left, or when the tenant that stays has finished.
  int64_t joins_max = std::numeric_limits<int64_t>::max();
  /// The run ends when the tenant that stays has made so many steps, or has finished.
  size_t steps_max = std::numeric_limits<size_t>::max();
};

/// The results of the tenant that stays, without times.
struct StayerResults {
  std::vector<std::string> rollouts;  // trained ones, sorted
  std::vector<std::string> metrics;   // one line per step
  friend bool operator==(const StayerResults&, const StayerResults&) = default;
};

/// Entries of every list in the saved states of all groups, by actor and field, and what resources
/// have.
using Census = std::map<std::string, uint64_t>;

struct HostedResult {
  RunOutcome outcome;
  StayerResults stayer;
  std::vector<std::string> faults;  // broken promises; empty = none
  int64_t num_started = 0, num_left = 0, num_faults = 0, num_trained = 0, num_remade = 0;
  int64_t num_pauses = 0, num_set = 0;
  Duration lasted;
  Census census;  // after the drain of the run
};

/// examples/two_tenants with the tenant that stays and four slots. It makes `max_steps` steps.
/// `sets` are `--set`s.
CheckedGraph hosted_graph(int64_t max_steps = 12, const std::vector<std::string>& sets = {});
HostedResult run_hosted(const CheckedGraph& graph, const HostedCase& hosted);

}  // namespace primerl::sim
