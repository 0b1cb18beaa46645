/// Options of a learner in a graph file: `[resource.x] kind = "learner"`. Plain values; the option
/// registry with ranges and docs is in runtime/backends/resource_catalog.cc.
#pragma once

#include <cstdint>
#include <string>

namespace primerl {

struct LossOptions {
  std::string kind = "dppo";  // "dppo" or "cross_entropy"
  double clip_low = 0.2;      // drop a token with A <= 0 when pi - mu < -clip_low
  double clip_high = 0.2;     // drop a token with A > 0 when pi - mu > clip_high
  double advantage_weight = 1.0;
  double kl_weight = 1e-3;  // of (log pi - log mu)^2
};

struct OptimizerOptions {
  std::string kind = "adamw";
  double lr = 1e-6;
  double weight_decay = 0.01;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double max_norm = 1.0;  // global L2 clip; 0 = off
};

struct ScheduleOptions {
  std::string kind = "constant";  // "constant", "linear" or "cosine"
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
  std::string products = "dtype";       // of linear layers: in `dtype`, or "fp8" on a CUDA device
  /// CUDA only: weight copies on the device that engines can read, one more than 'versions_max' of
  /// the channel. If none is free, a snapshot goes through the host.
  int32_t device_snapshots = 3;
  int32_t threads = 0;         // 0 = decided by the plan
  std::string device = "cpu";  // device of its process, set by the plan
  int32_t max_steps = 0;       // of the tenant, for the schedule; 0 = unknown
  int64_t init_seed = -1;      // >= 0: a folder without weights starts from random ones (SFT)
};

}  // namespace primerl
