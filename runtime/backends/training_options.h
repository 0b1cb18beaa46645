/// The options of the tables that every learner has: what is minimised and how weights follow.
/// Plain functions, any thread.
#pragma once

#include "graph/options.h"
#include "kernels/train/objective.h"
#include "kernels/train/optimizer.h"
#include "kernels/train/options.h"

namespace primerl {

OptionSet loss_options();           // LossOptions
OptionSet optimizer_options();      // OptimizerOptions
OptionSet schedule_options();       // ScheduleOptions
OptionSet learner_debug_options();  // LearnerDebugOptions

}  // namespace primerl
