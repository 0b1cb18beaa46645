/// Options of a learner in a graph file: `[resource.x] kind = "learner"`. Plain values; the option
/// registry with ranges and docs is in runtime/backends/resource_catalog.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace primerl {

struct ObjectiveSpec;  // objective.h
/// The objectives of plugins; null: none.
using OwnObjectives = std::shared_ptr<const std::vector<ObjectiveSpec>>;

/// The minimised objective by name (objective.h), and the numbers that differ from its own.
/// A number below 0 and an empty `mean` mean the objective's default.
struct LossOptions {
  std::string kind = "dppo";     // name of the objective
  double clip_low = -1;          // how far below mu (dppo, ipo) or 1 (ratios) a token may be
  double clip_high = -1;         // how far above
  double advantage_weight = -1;  // of the policy-gradient term
  double kl_weight = -1;         // of (log pi - log mu)^2
  double clip_dual = -1;         // most times |A| that a token with A < 0 costs; 0 = no limit
  double weight_low = -1;        // limits of the weight pi / mu
  double weight_high = -1;
  double moment_max = -1;        // of the mean of (log pi - log mu)^2 over the tokens of a step
  double proximal_share = -1;    // how far the proximal policy is from mu to pi, in log space
  double reference_weight = -1;  // of the distance from the reference, the base of the adapter
  double jsd_beta = -1;          // gkd: 0 = forward KL, 1 = reverse KL, between: their mixture
  std::string mean = {};         // "token", "sequence" or "constant"
  int64_t mean_tokens = 0;       // of one sequence, for "constant"; 0 = the tenant's seq_len
  OwnObjectives own = {};        // not an option: where `kind` is looked up too

  /// All but `own`.
  template <class F>
  static void fields(F& f) {
    using L = LossOptions;
    f("kind", &L::kind)("clip_low", &L::clip_low)("clip_high", &L::clip_high)(
        "advantage_weight", &L::advantage_weight)("kl_weight", &L::kl_weight)(
        "clip_dual", &L::clip_dual)("weight_low", &L::weight_low)("weight_high", &L::weight_high)(
        "moment_max", &L::moment_max)("proximal_share", &L::proximal_share)(
        "reference_weight", &L::reference_weight)("jsd_beta", &L::jsd_beta)("mean", &L::mean)(
        "mean_tokens", &L::mean_tokens);
  }
};

/// How weights follow gradients. A number below 0 means the kind's own (optimizer.h).
struct OptimizerOptions {
  std::string kind = "adamw";  // "adamw", "muon", "sgd", "sign_sgd" or "adafactor"
  double lr = 1e-6;
  double weight_decay = 0.01;
  double beta1 = -1;        // decay of the first moment (adamw, and muon's other tensors)
  double beta2 = -1;        // decay of the second moment
  double epsilon = -1;      // added to the root; the smallest root of adafactor
  double momentum = -1;     // decay of the sum of gradients (muon, sgd)
  bool nesterov = true;     // the step looks ahead along the momentum (muon, sgd)
  double decay_rate = -1;   // adafactor: the second moment keeps 1 - step^-decay_rate
  double update_clip = -1;  // adafactor: most root mean square of an update
  double scale_min = -1;    // adafactor: least root mean square of weights that scales a step
  double max_norm = 1.0;    // global L2 clip; 0 = off
  std::vector<std::string> no_decay = {};  // "norms", "biases", "embeddings", "head"
  std::string moments_dtype = "float32";   // or "bfloat16"
  std::string moments_on = "device";       // or "host", beside a CUDA device
};

struct ScheduleOptions {
  std::string kind = "constant";  // "constant", "linear", "cosine" or "wsd"
  int32_t warmup_steps = 0;
  int32_t decay_steps = 0;  // number of last steps, of max_steps, that decay
  double min_lr = 0.0;
};

/// Options that help to find NaN or infinity.
struct LearnerDebugOptions {
  bool check_finite = false;  // name the first activation that is not finite
  std::string batch_folder;   // keep the batches of steps here (batch_file.h); empty = no
  int32_t batches_max = 16;   // the newest batches; older ones are removed
  std::string dump_folder;    // all values of a step (train-step --dump); empty = no
};

struct LearnerOptions {
  LossOptions loss;
  OptimizerOptions optimizer;
  ScheduleOptions schedule;
  LearnerDebugOptions debug;
  int32_t micro_batch_tokens = 4096;    // tokens packed into one forward and backward
  int32_t adapter_batch_tokens = 1024;  // limit for one adapter in a pass that may be shared
  std::string recompute = "none";       // or "keep_attention" or "full"
  std::string numerics = "invariant";   // or "fast"
  std::string dtype = "auto";           // of the computation: "float32", "bfloat16"
  std::string products = "dtype";       // numbers that GEMMs read: "dtype", "bf16", "fp8"
  /// CUDA only: weight copies on the device that engines can read, one more than 'versions_max' of
  /// the channel. If none is free, a snapshot goes through the host.
  int32_t device_snapshots = 3;
  int32_t threads = 0;         // 0 = decided by the plan
  double peak_tflops = 0;      // of its device, for the metric perf/mfu; 0 = of a known device
  std::string device = "cpu";  // device of its process, set by the plan
  int32_t max_steps = 0;       // of the tenant, for the schedule; 0 = unknown
  int64_t init_seed = -1;      // >= 0: a folder without weights starts from random ones (SFT)
};

}  // namespace primerl
