/// What one tenant trains on a shared base, and how. Plain values.
#pragma once

#include <string>

#include "graph/base/ids.h"
#include "graph/base/result.h"
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

/// Why no learner trains by these rules; ok if one may.
Status check_rules(const TrainingRules& rules);

struct AdapterTraining {
  TenantSlot tenant{0};
  AdapterConfig adapter = {};
  TrainingRules rules = {};
  std::string start = {};  // a PEFT folder with the same rank and targets; "" = a new adapter
  /// The slot has no tenant at first; `adapter` is the largest that one may have
  /// (Learner::begin_tenant()), and the rules are not used.
  bool is_free = false;
};

/// Most adapters that one learner trains, with its free slots.
inline constexpr size_t kAdaptersOfLearnerMax = 1024;

}  // namespace primerl
