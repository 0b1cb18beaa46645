/// Tenant: who trains. The typed form of one `[tenant.<name>]` table, read by actors through
/// `services().tenant(slot)`. Immutable during a run; tenants share no mutable state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl {

struct EnvironmentContract;  // graph/catalog.h
struct RewardContract;

/// `[tenant.x] sampling = { ... }`; the meaning is SamplingParams' (kernels/engine/engine.h).
struct TenantSampling {
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t max_tokens = 16;        // new tokens of one turn
  std::vector<std::string> stop;  // texts that end a turn
  std::vector<int64_t> stop_ids;  // tokens that end a turn, besides the model's
  bool ignore_eos = false;
  bool include_stop = false;  // in the text that environment and reward read
};

/// `[tenant.x] environment = { name = "reverse_text", ... }`; the other keys are the environment's
/// own options, checked against its contract and kept as bound options.
struct TenantEnvironment {
  std::string name;
  std::shared_ptr<const void> options;            // of the type the environment's contract declares
  const EnvironmentContract* contract = nullptr;  // null: the built-in one of this name
};

/// `[tenant.x] reward = { name = "exact", ... }`, likewise; without a name, the reward is what the
/// environment gives.
struct TenantReward {
  std::string name;
  std::shared_ptr<const void> options;
  const RewardContract* contract = nullptr;  // null: the built-in one of this name
};

/// `[tenant.x.adapter]`: the tenant trains a LoRA adapter on the learner's model, whose weights
/// stay as they are. The meaning is AdapterConfig's (kernels/models/adapter.h).
struct TenantAdapter {
  int64_t rank = 0;    // 0 = no adapter: the whole weights train
  double alpha = 0.0;  // 0 = twice the rank
  std::vector<std::string> targets = {"all-linear"};
  bool rslora = false;
  double dropout = 0;  // of what A reads, in training steps alone; [0, 1)
  std::string path;    // absolute: the PEFT folder it starts from; "" = it adds nothing at first

  bool is_there() const { return rank > 0; }
};

/// `[tenant.x] loss = { ... }`: what differs from the learner's loss. A number below 0 is the
/// learner's; an empty kind is that of the trainer node.
struct TenantLoss {
  std::string kind;
  double clip_low = -1;
  double clip_high = -1;
  double advantage_weight = -1;
  double kl_weight = -1;
};

/// `[tenant.x] optimizer = { ... }`: what differs from the learner's optimizer. A number below 0 is
/// the learner's.
struct TenantOptimizer {
  double lr = -1;
  double weight_decay = -1;
  double max_norm = -1;
};

/// `[tenant.x] schedule = { ... }`: what differs from the learner's schedule; likewise, and an
/// empty kind.
struct TenantSchedule {
  std::string kind;
  int64_t warmup_steps = -1;
  int64_t decay_steps = -1;
  double min_lr = -1;
};

/// Which groups train. A filtered group ends as `filtered` and is replaced by a new one.
struct TenantFilters {
  bool zero_advantage = true;  // drop groups whose rewards are all equal
};

struct Tenant {
  std::string name;
  TenantSlot slot;
  TenantEnvironment environment;
  TenantReward reward;
  TenantSampling sampling;
  TenantFilters filters;
  TenantAdapter adapter;
  TenantLoss loss;
  TenantOptimizer optimizer;
  TenantSchedule schedule;
  int64_t group_size = 8;            // rollouts of one task
  int64_t batch_size = 64;           // rollouts of one step; a multiple of group_size
  int64_t max_off_policy_steps = 8;  // staleness limit; 0 = strictly on-policy
  int64_t max_steps = 100;           // the run ends after this many
  int64_t seq_len = 2048;            // longest trajectory, in tokens
  int64_t turns_max = 8;             // turns of one trajectory
  int64_t checkpoint_every = 0;      // steps; 0 = only at the end
  int64_t keep_last = 2;             // checkpoints kept; 0 = all
  int64_t keep_every = 0;            // every K-th checkpoint is never removed; 0 = none
  int64_t straggler_wait_ms = 0;     // how long a batch waits for an older group
  int64_t inflight = 0;              // rollouts at once; 0 = `max_inflight` of the node alone
  /// Of engines and learner, in tokens, while others want them too. 0 in a file: an equal part of
  /// what the other tenants leave; here the part itself, above 0.
  double share = 0;
  // Not a key: most rollouts at once, the sum over the nodes that open them.
  int64_t inflight_max = 0;
  Duration rollout_timeout = Duration::seconds(120);     // from dispatch to reward
  Duration environment_timeout = Duration::seconds(30);  // of one environment call

  /// Groups of one batch, G.
  int64_t groups_per_batch() const { return batch_size / group_size; }
};

/// No tenant of this name; `where` as in "this trace". There are few: all are said.
Error unknown_tenant(std::string_view name, const std::vector<std::string>& names,
                     std::string_view where);

}  // namespace primerl
