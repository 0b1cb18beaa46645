/// Tenant: one training, with tasks, versions and checkpoints of its own. The typed form of one
/// `[tenant.<name>]` table; actors read it through `services().tenant(slot)`. Immutable during a
/// run; tenants share no mutable state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/assert.h"
#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl {

struct EnvironmentContract;  // graph/catalog.h
struct RewardContract;

/// `[tenant.x] sampling = { ... }`; the meanings are those of SamplingParams
/// (kernels/engine/engine.h).
struct TenantSampling {
  double temperature = 1.0;
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  int64_t max_tokens = 16;        // new tokens of one turn
  std::vector<std::string> stop;  // texts that end a turn
  std::vector<int64_t> stop_ids;  // token ids that end a turn, besides the model's
  bool ignore_eos = false;
  bool include_stop = false;  // the stop text is part of the text that environment and reward read
};

/// `[tenant.x] environment = { name = "reverse_text", ... }`. The other keys are the environment's
/// own options, checked against its contract and stored as bound options.
struct TenantEnvironment {
  std::string name;
  std::shared_ptr<const void> options;            // of the type that the environment's contract
                                                  // declares
  const EnvironmentContract* contract = nullptr;  // null: the built-in environment of this name
  /// `{ service = "math" }`: the rest is of [service.environment.math]. Empty: the tenant's own.
  std::string service = {};
  const std::string& shown_name() const { return service.empty() ? name : service; }
};

/// `[tenant.x] reward = { name = "exact", ... }`, in the same way, or a list of such tables.
struct TenantReward {
  std::string name;
  std::shared_ptr<const void> options;
  const RewardContract* contract = nullptr;  // null: the built-in reward of this name
  double weight = 1;                         // of its score in the sum of all
  /// Unique among the tenant's rewards, for metrics: "exact", "exact#2". Filled in.
  std::string label = {};
  std::string service = {};  // as for an environment
  const std::string& shown_name() const { return service.empty() ? name : service; }
};
/// Most rewards of one tenant.
inline constexpr size_t kTenantRewardsMax = 16;

/// `[tenant.x.adapter]`: the tenant trains a LoRA adapter on the learner's model, whose weights do
/// not change. The meanings are those of AdapterConfig (kernels/models/adapter.h).
struct TenantAdapter {
  int64_t rank = 0;    // 0 = no adapter: all weights train
  double alpha = 0.0;  // 0 = twice the rank
  std::vector<std::string> targets = {"all-linear"};
  bool rslora = false;
  double dropout = 0;  // on the input of A, only in training steps; [0, 1)
  std::string path;    // absolute path of the PEFT folder it starts from; "" = the output of a new
                       // adapter is 0

  bool is_there() const { return rank > 0; }
};

/// `[tenant.x] loss = { ... }`: values that differ from the learner's loss. A number below 0 and an
/// empty text mean the learner's value, or the objective's own if the tenant has another objective
/// than the learner. The meanings are those of LossOptions (kernels/train/options.h).
struct TenantLoss {
  std::string kind;
  double clip_low = -1;
  double clip_high = -1;
  double advantage_weight = -1;
  double kl_weight = -1;
  double clip_dual = -1;
  double weight_low = -1;
  double weight_high = -1;
  double moment_max = -1;
  double proximal_share = -1;
  double reference_weight = -1;
  double jsd_beta = -1;
  std::string mean;
  int64_t mean_tokens = 0;
};

/// `[tenant.x] advantage = { ... }`: how rewards become advantages (kernels/train/advantage.h).
struct TenantAdvantage {
  std::string kind;           // "" = the objective's
  double length_weight = 0;   // long answers: R / (1 + weight * length / mean length); 0 = off
  int64_t overlong_from = 0;  // sampled tokens from which an answer costs reward
  int64_t overlong_to = 0;    // tokens that cost 1; 0 = off
};

/// `[tenant.x] optimizer = { ... }`: values that differ from the learner's optimizer. A number
/// below 0 and an empty kind mean the learner's value, or the kind's own if the tenant has another
/// kind. The meanings are those of OptimizerOptions (kernels/train/options.h).
struct TenantOptimizer {
  std::string kind;
  double lr = -1;
  double weight_decay = -1;
  double beta1 = -1;
  double beta2 = -1;
  double epsilon = -1;
  double momentum = -1;
  double decay_rate = -1;
  double update_clip = -1;
  double scale_min = -1;
  double max_norm = -1;
};

/// `[tenant.x] schedule = { ... }`: values that differ from the learner's schedule. A number below
/// 0 or an empty kind means the learner's value.
struct TenantSchedule {
  std::string kind;
  int64_t warmup_steps = -1;
  int64_t decay_steps = -1;
  double min_lr = -1;
};

/// Most likeliest tokens of a teacher at one position (kPromptTopLogprobsMax of the engine).
inline constexpr int64_t kTeacherTopKMax = 256;

/// `[tenant.x] teacher = { model = "big" }`: a frozen model of the graph that gives the tokens of
/// the tenant's rollouts log-probabilities, for objectives with a reference
/// (docs/design/teacher.md).
struct TenantTeacher {
  std::string model;                         // "" = no teacher
  Duration timeout = Duration::seconds(60);  // from a group to its log-probabilities
  int64_t top_k = 0;  // also its likeliest tokens at each sampled one; 0 = no

  bool is_there() const { return !model.empty(); }
};

/// Which groups train. A filtered group ends as `filtered` and is replaced by a new one.
struct TenantFilters {
  bool zero_advantage = true;  // filter out groups whose rewards are all equal
  bool truncated = false;      // drop rollouts that were cut off
  int64_t repetition_max = 0;  // drop rollouts with more near-certain tokens in a row; 0 = off
  int64_t gibberish_from =
      0;  // drop rollouts with an improbable token of this id or above; 0 = off
};

/// `[tenant.x] eval = { ... }`: rollouts of given rows that measure the policy and do not train.
struct TenantEval {
  int64_t interval = 0;      // policy versions from one evaluation to the next; 0 = no evaluation
  bool at_start = true;      // of the version that a new run starts from
  bool at_end = true;        // of the last version; the run ends after it
  int64_t samples = 1;       // rollouts of each row (k)
  int64_t rows = 0;          // 0 = all rows of the environment; then their number is filled in
  double temperature = -1;   // below 0 = that of `sampling`
  double top_p = -1;         // below 0 = that of `sampling`
  int64_t max_tokens = 0;    // 0 = that of `sampling`
  double pass_reward = 1.0;  // a rollout passes with this reward or more
  // Not a key: the trainer measures the loss of held-out examples; no rollouts are played.
  bool is_of_answers = false;

  bool is_on() const { return interval > 0; }
  bool runs_at_end() const { return is_on() && at_end; }
};

/// A reward or threshold beyond every reward: it is never reached.
inline constexpr double kNoReward = 2e6;

/// One of `pools` of a curriculum: the rows with a mean reward of at least `threshold`, up to that
/// of the next pool.
struct DifficultyPool {
  double threshold = 0;
  double weight = 1;
};
/// Most pools, and most stages, of one curriculum.
inline constexpr size_t kCurriculumPoolsMax = 64;

/// One of `stages` of a curriculum: the rows whose field is at most `most`.
struct CurriculumStage {
  double most = kNoReward;
  double reward = -kNoReward;  // the next stage begins if the mean of `groups` groups reaches it
  int64_t groups = 64;
};

/// `[tenant.x] curriculum = { ... }`: how often each row of the environment is given, by the mean
/// reward of the last group that was made of it (actors/common/curriculum.h).
struct TenantCurriculum {
  int64_t rows = 0;  // 0 = the rows of the environment; then their number is filled in
  double easy_threshold = kNoReward;   // rows with this mean reward or more leave
  double hard_threshold = -kNoReward;  // rows with this mean reward or less leave
  double easy_fraction = 0;            // share of the easy rows that return when a run starts
  double hard_fraction = 0;            // the same of the hard rows
  double unseen_weight = 1;            // of rows without a group
  std::vector<DifficultyPool> pools;
  std::string field;  // number of a row that stages compare; "" = the number of the row
  std::vector<CurriculumStage> stages;

  bool is_on() const {
    return easy_threshold < kNoReward || hard_threshold > -kNoReward || !pools.empty() ||
           !stages.empty();
  }
};

/// `[tenant.x.chat]`: how conversations become token ids (kernels/text/chat/format.h).
struct TenantChat {
  std::string prompts = "plain";  // "plain" or "user": what a task without messages becomes
  std::string name;               // of one of several templates of the model; "" = "default"
  std::string kwargs;             // JSON object of chat_template_kwargs; "" = none
  std::string date;               // "2026-11-26", for templates that print it; `run` fills it in
  std::string parser = "auto";    // how answers are parsed
  /// "exact": later turns follow the sampled tokens. "template": each turn renders the whole
  /// conversation again (docs/design/samples.md).
  std::string history = "exact";
};

struct Tenant {
  std::string name;
  TenantSlot slot;
  TenantEnvironment environment;
  std::vector<TenantReward> rewards;  // empty: the environment's own reward is used
  TenantSampling sampling;
  TenantFilters filters;
  TenantChat chat;
  TenantEval eval;
  TenantAdapter adapter;
  TenantLoss loss;
  TenantAdvantage advantage;
  TenantTeacher teacher;
  TenantOptimizer optimizer;
  TenantSchedule schedule;
  TenantCurriculum curriculum;
  int64_t group_size = 8;            // rollouts of one task
  int64_t batch_size = 64;           // rollouts of one step; a multiple of group_size
  int64_t max_off_policy_steps = 8;  // staleness limit; 0 = strictly on-policy
  int64_t tokens_per_second = 0;     // of engines, from [graph.tenant_limits]; 0 = no limit
  int64_t max_steps = 100;           // the run ends after this many
  int64_t epochs = 0;                // passes over the rows of a data set; 0 = only max_steps ends
                                     // the run
  int64_t seq_len = 2048;            // longest trajectory, in tokens
  int64_t turns_max = 8;             // turns of one trajectory
  int64_t checkpoint_every = 0;      // steps; 0 = only at the end
  int64_t keep_last = 2;             // checkpoints kept; 0 = all
  int64_t keep_every = 0;            // every K-th checkpoint is never removed; 0 = none
  int64_t keep_best = 0;             // checkpoints with the best `best_by`, never removed; 0 = none
  /// A metric of training steps. The largest is best, with "-" before the name the smallest.
  std::string best_by = "reward/all/mean";
  int64_t straggler_wait_ms = 0;  // how long a batch waits for an older group
  int64_t inflight = 0;           // most rollouts at once; 0 = only `max_inflight` of the node
                                  // limits them. For a client: most samples
  /// A client trains it by halves of a step, so it has no environment, groups or batches
  /// (docs/design/client-steps.md). The instances of nodes for loops are vacant in its slot.
  bool is_client = false;
  /// Weights for samplers that its client keeps beside the moving ones. A loop has them where a
  /// client may have its slot later.
  int64_t snapshots = 0;
  /// Share of engines and learner, by tokens, while other tenants need them too. 0 in a file means
  /// an equal part of what the other tenants leave; here that part is filled in, above 0.
  double share = 0;
  // Not a key: the objective that its learner minimises for it.
  std::string objective = "dppo";
  // Not a key: `served_as` of the model that it trains, or that answers for it.
  std::vector<std::string> served_as;
  // Not a key: most rollouts at once, summed over the nodes that open them.
  int64_t inflight_max = 0;
  // Not a key: tasks of all epochs; 0 = no limit.
  int64_t tasks_max = 0;
  // Not a key: the model that it trains, by its name in the graph file.
  std::string base_model;
  // Not a key: which use of its slot and name this is, from 0 (graph/tenancies.h).
  uint32_t tenancy = 0;
  // Not a key: of one that joined, the step of the checkpoint at which it continues; 0: none.
  int64_t begins_at = 0;
  // Not a key: groups of examples of all epochs of supervised training; 0 = no limit.
  int64_t groups_max = 0;
  Duration rollout_timeout = Duration::seconds(120);     // from dispatch to reward
  Duration environment_timeout = Duration::seconds(30);  // time limit of one environment call

  /// With `[[tenant.x.environments]]`: the tenant as each of them sees it, with that
  /// environment, its rewards and the keys that it replaces (docs/design/environments.md). The
  /// tenant itself then has the rewards of all one after the other, and limits that hold for all.
  /// Empty: one environment.
  std::vector<std::shared_ptr<const Tenant>> mix;
  std::string label;   // in a mix: the environment's name in metrics and lines
  int64_t weight = 1;  // in a mix: its tasks in each cycle

  /// Groups of one batch, G.
  int64_t groups_per_batch() const { return batch_size / group_size; }

  size_t num_environments() const { return mix.empty() ? 1 : mix.size(); }
  const Tenant& in_environment(size_t index) const {
    CHECK(index < num_environments(), "a tenant has no such environment");
    return mix.empty() ? *this : *mix[index];
  }
  /// The environment's name in metrics and lines.
  const std::string& environment_label() const {
    return label.empty() ? environment.shown_name() : label;
  }
};
/// Most snapshots that a client keeps: weights for samplers that stay as they are.
inline constexpr size_t kClientSnapshotsMax = 16;
/// `max_steps` of a tenant that a client trains: it does not end by steps.
inline constexpr int64_t kClientStepsMax = INT32_MAX;
/// Most environments of one tenant, and the largest weight of one.
inline constexpr size_t kTenantEnvironmentsMax = 64;
inline constexpr int64_t kEnvironmentWeightMax = 1000;

/// The error for an unknown tenant; `where` is for example "this trace". It lists all tenants,
/// because there are few.
Error unknown_tenant(std::string_view name, const std::vector<std::string>& names,
                     std::string_view where);

}  // namespace primerl
