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
      .field("jsd_beta", &L::jsd_beta, between(-1, 1),
             "gkd: 0 = forward KL, 1 = reverse KL, between: their mixture; -1 = the objective's")
      .field("mean", &L::mean, one_of({"", "token", "sequence", "constant"}),
             "what counts the same in a step: tokens, or sequences, whose tokens are divided by "
             "their number or by mean_tokens; \"\" = the objective's")
      .field("mean_tokens", &L::mean_tokens, count_from(0) | unit("tokens"),
             "divisor of a sequence for mean = \"constant\"; 0 = the tenant's seq_len");
}

namespace {

/// A number in [0, 1), or -1.
Constraint below_one() { return from_below(-1, 1); }

}  // namespace

OptionSet optimizer_options() {
  using O = OptimizerOptions;
  return OptionsOf<O>()
      .field("kind", &O::kind, one_of(optimizer_names()),
             "the optimizer; docs/how-to/choose-an-optimizer.md has formulas and default numbers")
      .field("lr", &O::lr, at_least(0), "learning rate after the warm-up")
      .field("weight_decay", &O::weight_decay, at_least(0),
             "decoupled decay; sgd adds it to the gradient")
      .field("beta1", &O::beta1, below_one(), "decay of the first moment; -1 = the optimizer's own")
      .field("beta2", &O::beta2, below_one(),
             "decay of the second moment; -1 = the optimizer's own")
      .field("epsilon", &O::epsilon, at_least(-1),
             "added to the root; the smallest root of adafactor; -1 = the optimizer's own")
      .field("momentum", &O::momentum, below_one(),
             "decay of the gradients of earlier steps (muon, sgd); -1 = the optimizer's own")
      .field("nesterov", &O::nesterov, any(),
             "a step also follows the momentum one step ahead (muon, sgd)")
      .field("decay_rate", &O::decay_rate, at_least(-1),
             "adafactor: step n keeps 1 - n^-decay_rate of the second moment; -1 = its own")
      .field("update_clip", &O::update_clip, at_least(-1),
             "adafactor: most root mean square of an update, before lr; -1 = its own")
      .field("scale_min", &O::scale_min, at_least(-1),
             "adafactor: a step is scaled by the root mean square of the weights, but at least "
             "this; -1 = its own")
      .field("max_norm", &O::max_norm, at_least(0),
             "gradients are clipped to this L2 norm; 0 = off")
      .field("no_decay", &O::no_decay, between(0, 4) | unit("groups"),
             "tensors without weight decay: \"norms\", \"biases\", \"embeddings\" (with a tied "
             "head), \"head\"")
      .field("moments_dtype", &O::moments_dtype, one_of({"float32", "bfloat16"}),
             "type of stored moments (adamw, muon, sgd); bfloat16 halves them, and is rounded at "
             "random")
      .field("moments_on", &O::moments_on, one_of({"device", "host"}),
             "memory of the moments (adamw, muon, sgd); \"host\": beside a CUDA device, and each "
             "step copies them there and back");
}

OptionSet schedule_options() {
  return OptionsOf<ScheduleOptions>()
      .field("kind", &ScheduleOptions::kind, one_of({"constant", "linear", "cosine", "wsd"}),
             "how the learning rate falls; \"wsd\": flat, then along 1 - sqrt")
      .field("warmup_steps", &ScheduleOptions::warmup_steps, at_least(0) | unit("steps"),
             "first steps, rising to lr")
      .field("decay_steps", &ScheduleOptions::decay_steps, at_least(0) | unit("steps"),
             "last steps of max_steps, falling to min_lr; 0 = all after the warm-up")
      .field("min_lr", &ScheduleOptions::min_lr, at_least(0), "where the decay ends");
}

OptionSet learner_debug_options() {
  using D = LearnerDebugOptions;
  return OptionsOf<D>()
      .field("check_finite", &D::check_finite, any(),
             "names the first activation that is NaN or infinite, and skips the step")
      .field("batch_folder", &D::batch_folder, any(),
             "keeps each step's batch here, for `primerl-graph train-step`; empty = no")
      .field("batches_max", &D::batches_max, at_least(1) | unit("files"),
             "newest batches that are kept");
}

}  // namespace primerl
