#include "runtime/backends/training_options.h"

namespace primerl {

OptionSet loss_options() {
  using L = LossOptions;
  const Constraint number = at_least(-1);
  return OptionsOf<L>()
      .field("kind", &L::kind, one_of(objective_names()),
             "the objective; docs/how-to/choose-an-objective.md has formulas and default numbers")
      .field("clip_low", &L::clip_low, number,
             "how far pi may be below mu (dppo, ipo, ref_kl), or a ratio below 1; -1 = the "
             "objective's own number")
      .field("clip_high", &L::clip_high, number, "how far above; -1 = the objective's")
      .field("advantage_weight", &L::advantage_weight, number,
             "weight of the policy-gradient term; -1 = the objective's")
      .field("kl_weight", &L::kl_weight, number,
             "weight of (log pi - log mu)^2; -1 = the objective's")
      .field(
          "clip_dual", &L::clip_dual, number,
          "most times |advantage| that a token with a negative one costs; 0 = no limit, -1 = the "
          "objective's")
      .field("weight_low", &L::weight_low, number,
             "lower limit of the weight pi / mu; -1 = the objective's")
      .field("weight_high", &L::weight_high, number, "upper limit; -1 = the objective's")
      .field("moment_max", &L::moment_max, number,
             "tokens are dropped until the mean (log pi - log mu)^2 of the step is at most this; "
             "-1 = the objective's")
      .field("proximal_share", &L::proximal_share, between(-1, 1),
             "how far the proximal policy is from mu (0) to pi (1), in log space; -1 = the "
             "objective's")
      .field(
          "reference_weight", &L::reference_weight, number,
          "weight of the distance from the reference, the base of the tenant's adapter; -1 = the "
          "objective's")
      .field("mean", &L::mean, one_of({"", "token", "sequence", "constant"}),
             "what counts the same in a step: tokens, or sequences, whose tokens are divided by "
             "their number or by mean_tokens; \"\" = the objective's")
      .field("mean_tokens", &L::mean_tokens, count_from(0) | unit("tokens"),
             "divisor of a sequence for mean = \"constant\"; 0 = the tenant's seq_len");
}

OptionSet optimizer_options() {
  return OptionsOf<OptimizerOptions>()
      .field("kind", &OptimizerOptions::kind, one_of({"adamw"}), "the optimizer")
      .field("lr", &OptimizerOptions::lr, at_least(0), "learning rate after the warm-up")
      .field("weight_decay", &OptimizerOptions::weight_decay, at_least(0), "decoupled decay")
      .field("beta1", &OptimizerOptions::beta1, from_below(0, 1), "decay of the first moment")
      .field("beta2", &OptimizerOptions::beta2, from_below(0, 1), "decay of the second moment")
      .field("epsilon", &OptimizerOptions::epsilon, above(0), "added to the root")
      .field("max_norm", &OptimizerOptions::max_norm, at_least(0),
             "gradients are clipped to this L2 norm; 0 = off");
}

OptionSet schedule_options() {
  return OptionsOf<ScheduleOptions>()
      .field("kind", &ScheduleOptions::kind, one_of({"constant", "linear", "cosine"}),
             "how the learning rate falls")
      .field("warmup_steps", &ScheduleOptions::warmup_steps, at_least(0) | unit("steps"),
             "first steps, rising to lr")
      .field("decay_steps", &ScheduleOptions::decay_steps, at_least(0) | unit("steps"),
             "last steps of max_steps, falling to min_lr")
      .field("min_lr", &ScheduleOptions::min_lr, at_least(0), "where the decay ends");
}

}  // namespace primerl
