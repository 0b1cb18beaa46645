#include "kernels/train/adapter_training.h"

#include "kernels/train/objective.h"
#include "kernels/train/optimizer.h"
#include "kernels/train/schedule.h"

namespace primerl {

Status check_rules(const TrainingRules& rules) {
  RETURN_IF_ERROR(validate(rules.loss));
  if (objective_of(rules.loss).mean == LossMean::kConstant && rules.loss.mean_tokens == 0)
    return error(Code::kInvalid,
                 "mean = \"constant\" needs mean_tokens, the divisor of a sequence");
  RETURN_IF_ERROR(validate(rules.optimizer));
  return validate(rules.schedule, rules.optimizer.lr, rules.max_steps);
}

}  // namespace primerl
