/// What one tenant trains on a shared base, and how. Plain values.
#pragma once

#include <string>

#include "graph/base/ids.h"
#include "kernels/models/adapter.h"
#include "kernels/train/options.h"

namespace primerl {

/// The training rules of one tenant: loss, optimizer and schedule.
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
  std::string start = {};  // a PEFT folder with the same rank and targets; "" = a new adapter
};

/// Most adapters that one learner trains.
inline constexpr size_t kAdaptersOfLearnerMax = 64;

}  // namespace primerl
