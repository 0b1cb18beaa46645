/// Learner: turns groups of scored trajectories into a gradient step, and weights into snapshots.
///
/// Lives on its actor group's one thread; not thread-safe. Order: construct (weights loaded,
/// version 0) -> [load] -> step -> snapshot -> step ...; save at any time between steps. Arrays of
/// a TrainSample are parallel, all [num_tokens]. One learner may train several tenants, each with
/// its own adapter: every call names whose weights it means, and no call of one changes a bit of
/// another's. Steps of several tenants may share a pass over the model: each is equal to the bit to
/// the same step alone (with numerics = "invariant"; with "fast" a CPU shares none, and on a CUDA
/// device last bits may differ).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/blob.h"
#include "graph/base/ids.h"
#include "graph/base/resource.h"
#include "kernels/train/learner_turns.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// One trajectory (or one branch of it) as the loss sees it.
struct TrainSample {
  std::vector<int32_t> tokens;     // prompt and completion(s), as generated
  std::vector<uint8_t> loss_mask;  // 1 where the policy sampled the token (or SFT trains on it)
  std::vector<float> logprobs;     // at sampling, 0 where loss_mask is 0; empty for SFT
  std::vector<float> advantages;   // per token, constant within a trajectory; empty for SFT
  float temperature = 1.0F;        // of sampling; logits are divided by it
  /// kept_sets.h: one entry for each token with loss_mask 1; empty: all tokens were kept. The
  /// policy is then the distribution over the kept ids alone, which do not depend on the weights.
  Blob kept;
};

enum class LossKind : uint8_t { kDppo, kCrossEntropy };

/// What a sample must keep within: a learner says it, check_sample() (packing.h) holds one against
/// it.
struct SampleLimits {
  int32_t max_sequence_tokens = 0;  // longest sample
  int32_t vocab_size = 0;           // tokens are [0, vocab_size)

  template <class F>
  static void fields(F& f) {
    f("max_sequence_tokens", &SampleLimits::max_sequence_tokens)("vocab_size",
                                                                 &SampleLimits::vocab_size);
  }
};

/// One optimizer step's data of one tenant: the mean is over all its loss tokens.
struct TrainBatch {
  TenantSlot tenant;
  LossKind loss = LossKind::kDppo;
  std::vector<TrainSample> samples;
};

/// What a step did. Means are over the loss tokens of the step.
struct TrainReport {
  double loss = 0;
  double entropy_mean = 0;      // nats
  double mismatch_kl_mean = 0;  // k3: r - log r - 1, r = pi / mu
  double mismatch_kl_max = 0;
  double masked_fraction = 0;  // tokens whose policy-gradient term the trust region dropped
  double grad_norm = 0;        // before clipping
  double learning_rate = 0;
  int64_t num_tokens = 0;  // all tokens through the model
  int64_t num_loss_tokens = 0;
  /// Tokens of all tenants in its last pass; 0: it had one pass, for itself. The time of a step is
  /// the time of that pass by its part of these: above 1 where it had several passes.
  int64_t num_pass_tokens = 0;
  int32_t num_micro_batches = 0;
  bool skipped = false;  // nothing to train on, or a non-finite gradient: weights unchanged
  std::string skip_reason;

  template <class F>
  static void fields(F& f) {
    using R = TrainReport;
    f("loss", &R::loss)("entropy_mean", &R::entropy_mean)("mismatch_kl_mean", &R::mismatch_kl_mean)(
        "mismatch_kl_max", &R::mismatch_kl_max)("masked_fraction", &R::masked_fraction)(
        "grad_norm", &R::grad_norm)("learning_rate", &R::learning_rate)(
        "num_tokens", &R::num_tokens)("num_loss_tokens", &R::num_loss_tokens)(
        "num_pass_tokens", &R::num_pass_tokens)("num_micro_batches", &R::num_micro_batches)(
        "skipped", &R::skipped)("skip_reason", &R::skip_reason);
  }
};

/// Asked between micro-batches; true makes the learner leave and discard the step (kCancelled).
using StopRequested = std::function<bool()>;

class Learner : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "learner";
  using Resource::step;  // a learner has no work of its own between calls
  /// One optimizer step. An error leaves weights and optimizer as they were. One sample that
  /// check_sample() refuses makes an error of the whole batch: whoever forms batches asks first.
  virtual Result<TrainReport> step(const TrainBatch& batch,
                                   const StopRequested& stop_requested) = 0;
  /// A step of each of several tenants, with the results in the order of `batches`: what step()
  /// gives for each, and an error or a skip of one changes nothing for the others. A stop discards
  /// the steps that are not done.
  virtual std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                         const StopRequested& stop_requested);
  /// One pass over the model for steps of several tenants, at most one micro-batch of each, with
  /// the results in the order of `batches`: nothing yet where the step goes on with its next pass,
  /// which is asked for with the same batch. Until its last pass a step has changed nothing, and
  /// what its passes have left is the same whoever shared them. A learner that divides no step
  /// takes the whole ones.
  virtual std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested);
  /// At most so many tokens of `batch` are in the next pass of its step, at least 1.
  virtual int64_t next_tokens(const TrainBatch& batch) const;
  /// Forgets the tenant's step that goes on with another pass, if there is one.
  virtual void discard(TenantSlot tenant) { (void)tenant; }
  /// The weights of `tenant` as they are now, named `version`: an immutable copy. It has the
  /// default key; whose weights they are is known to who asks. Adapter tensors alone (adapter.h)
  /// where an adapter is trained.
  virtual Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                                 PolicyVersion version) = 0;
  /// Log-probability of tokens[i] given tokens[0, i), i >= 1, at temperature 1: [num_tokens - 1].
  virtual Result<std::vector<float>> score(TenantSlot tenant,
                                           const std::vector<int32_t>& tokens) = 0;
  /// Writes `weights/` (a Hugging Face folder; a PEFT folder where an adapter is trained) and
  /// `learner/` (optimizer, schedule, random state) below `folder`, which exists. Files are synced;
  /// the caller commits the folder.
  virtual Status save(TenantSlot tenant, const std::filesystem::path& folder) = 0;
  /// Restores what save() wrote, of whatever tenant; all or nothing.
  virtual Status load(TenantSlot tenant, const std::filesystem::path& folder) = 0;
  /// A step of one of several tenants when its turns come (learner_turns.h), one for each of its
  /// passes: asked with the same batch in every work turn until there is a result. Whoever asks
  /// first when a pass is due runs it for all whose turn it is; those whose steps are done with it
  /// get their results when they ask, later in the same turn.
  virtual std::optional<Result<TrainReport>> step_in_line(std::shared_ptr<const TrainBatch> batch,
                                                          uint64_t turn,
                                                          const StopRequested& stop_requested);
  /// The tenant has no batch, or none any more; it may leave at any time between turns.
  virtual void leave_line(TenantSlot tenant);
  /// Before the first turn. `shares` by tenant slot; `tokens_max` of several tenants in a pass.
  void share_out(const std::vector<double>& shares, int64_t tokens_max) {
    turns_ = LearnerTurns(shares, tokens_max);
  }
  /// What every sample must keep within; the same for as long as the learner lives.
  virtual SampleLimits limits() const = 0;

 private:
  void run_pass(const std::vector<TenantSlot>& tenants, const StopRequested& stop_requested);

  struct Waiting {
    std::shared_ptr<const TrainBatch> batch;
    int64_t num_tokens = 0;  // of its next pass
  };

  LearnerTurns turns_;
  // At most one of each tenant.
  std::map<TenantSlot, Waiting> line_;
  std::set<TenantSlot> under_way_;                     // whose step has had a pass and goes on
  std::map<TenantSlot, Result<TrainReport>> reports_;  // of a pass, until they are asked for
};

}  // namespace primerl
