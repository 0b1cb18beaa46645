/// TaskMix: which environment of a tenant gives the task of an ordinal, and which row an ordinal of
/// an evaluation has.
///
/// A pure function of the tenant, a seed and the ordinal: it has no state, so a resumed run, a
/// replay and every replica of a node know the same. The weights make a cycle, in which each
/// environment has as many tasks as its weight. They are spread evenly (Tijdeman's rule for the
/// chairman assignment problem): in any row of tasks, an environment has less than 2 tasks more or
/// fewer than its share. Immutable; any thread.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/base/json.h"
#include "graph/base/result.h"
#include "graph/tenant.h"

namespace primerl {

/// The purpose of the random number that is the seed of a tenant's mix (Services::random).
inline constexpr std::string_view kTaskMixSeed = "environments";

class TaskMix {
 public:
  /// One environment.
  TaskMix() : TaskMix(std::vector<int64_t>{1}, 0) {}
  /// `seed` decides where in the cycle the first task is.
  TaskMix(std::vector<int64_t> weights, uint64_t seed);

  struct Drawn {
    uint32_t environment = 0;
    uint64_t number = 0;  // of its tasks, from 0 without gaps
  };
  Drawn at(uint64_t ordinal) const;
  size_t cycle() const { return slots_.size(); }

 private:
  struct Slot {
    uint32_t environment = 0;
    uint32_t before = 0;  // of its tasks, earlier in the cycle
  };
  std::vector<Slot> slots_;
  std::vector<int64_t> weights_;   // divided by their common divisor
  std::vector<uint64_t> skipped_;  // tasks of each environment before the first one
  uint64_t begin_ = 0;             // the slot of ordinal 0
};

/// The weights of the tenant's environments.
std::vector<int64_t> weights_of(const Tenant& tenant);

/// The key of a manifest with the environments of a mix: [["sums", 2], ["words", 1]], weights
/// without their common divisor. A tenant with one environment has none.
inline constexpr std::string_view kMixOfCheckpoint = "environments";
Json mix_json(const Tenant& tenant);
/// Refuses a checkpoint (`manifest`: the trainer's part) that was made with another mix: its
/// ordinals would be other tasks.
Status check_mix(const Tenant& tenant, const Json& manifest);

/// A row of an evaluation: the rows of the environments follow each other.
struct EvaluationRow {
  uint32_t environment = 0;
  uint64_t row = 0;  // of that environment
};
EvaluationRow evaluation_row_of(const Tenant& tenant, uint64_t ordinal);

}  // namespace primerl
