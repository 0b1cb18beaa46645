/// What a tenant trains on a base that others share, and how. Plain values.
#pragma once

#include <string>

#include "graph/base/ids.h"
#include "kernels/models/adapter.h"
#include "kernels/train/options.h"

namespace primerl {

/// Of one tenant: how her loss becomes steps.
struct TrainingRules {
  LossOptions loss = {};
  OptimizerOptions optimizer = {};
  ScheduleOptions schedule = {};
  int32_t max_steps = 0;  // for the schedule; 0 = unknown
};

struct AdapterTraining {
  TenantSlot tenant{0};
  AdapterConfig adapter = {};
  TrainingRules rules = {};
  std::string start = {};  // a PEFT folder of the same rank and targets; "" = a new adapter
};

/// Adapters that one learner trains at most.
inline constexpr size_t kAdaptersOfLearnerMax = 64;

}  // namespace primerl
