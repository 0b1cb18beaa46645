/// Learner: turns groups of scored trajectories into a gradient step, and weights into snapshots.
///
/// Lives on its actor group's one thread; not thread-safe. Order: construct (weights loaded,
/// version 0) -> [load] -> step -> snapshot -> step ...; save at any time between steps. Arrays of
/// a TrainSample are parallel, all [num_tokens]. One learner may train several tenants, each with
/// its own adapter: every call names the tenant, and no call for one tenant changes a bit of
/// another's weights. Steps of several tenants may share a pass over the model: with numerics =
/// "invariant" each step has the same bits as when run alone. With "fast" a CPU shares no passes,
/// and on a CUDA device the last bits may differ.
///
/// A step has two halves, which a client may ask for one by one: accumulate() adds to the gradients
/// of its tenant, apply() updates the weights by them. Between the two the gradients are open: no
/// checkpoint has them (docs/design/client-steps.md).
///
/// A tenant may leave and another join in its slot, between two calls and between two passes of the
/// others' steps (docs/design/hosted.md).
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
#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/base/late_answers.h"
#include "graph/base/resource.h"
#include "kernels/train/learner_turns.h"
#include "kernels/train/loss_batch.h"
#include "kernels/train/step_measures.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

struct AdapterTraining;  // adapter_training.h

/// One trajectory (or one branch of it) as the loss uses it.
struct TrainSample {
  std::vector<int32_t> tokens;     // prompt and completion(s), as generated
  std::vector<uint8_t> loss_mask;  // 1 where the policy sampled the token (or SFT trains on it)
  std::vector<float> logprobs;     // at sampling, 0 where loss_mask is 0; empty for SFT
  std::vector<float> advantages;   // per token, constant within a trajectory; empty for SFT
  std::vector<float> proximal;     // log-probabilities of a proximal policy; empty: none stored
  std::vector<float> reference;    // of a reference model; empty: the learner computes them
  /// The likeliest tokens of a teacher at each loss token, and their log-probabilities:
  /// [loss tokens, k], k >= 1; empty: none stored.
  std::vector<int32_t> top_tokens;
  std::vector<float> top_logprobs;
  std::vector<float> weights;      // of the loss of each token, >= 0; empty: 1
  std::vector<int32_t> distances;  // versions from each token to the step, -1: not sampled; empty:
                                   // not known. For metrics only.
  float temperature = 1.0F;        // at sampling; logits are divided by it
  /// kept_sets.h: one entry for each token with loss_mask 1; empty: all tokens were kept. The
  /// policy is then the distribution over the kept ids only; they do not depend on the weights.
  Blob kept;
};

/// The data of a batch: rollouts for the learner's objective, answers to imitate, whatever that
/// objective is, or rollouts or answers with a teacher's likeliest tokens (top_k.h). The last have
/// log-probabilities at sampling only if the policy sampled them.
enum class LossKind : uint8_t { kPolicy, kCrossEntropy, kTopK };

/// Limits of a sample: the learner provides them, check_sample() (packing.h) checks them.
struct SampleLimits {
  int32_t max_sequence_tokens = 0;  // longest sample
  int32_t vocab_size = 0;           // tokens are [0, vocab_size)

  template <class F>
  static void fields(F& f) {
    f("max_sequence_tokens", &SampleLimits::max_sequence_tokens)("vocab_size",
                                                                 &SampleLimits::vocab_size);
  }
};

/// The data of one optimizer step of one tenant; the loss is the mean over all its loss tokens.
struct TrainBatch {
  TenantSlot tenant;
  LossKind loss = LossKind::kPolicy;
  std::vector<TrainSample> samples;
};

/// The loss of given answers under the current weights.
struct AnswerLoss {
  double sum = 0;          // of -log pi of each loss token, times its weight
  int64_t num_tokens = 0;  // loss tokens with a weight above 0

  template <class F>
  static void fields(F& f) {
    f("loss_sum", &AnswerLoss::sum)("loss_tokens", &AnswerLoss::num_tokens);
  }
};

/// Adds a loss token to the sum; one with weight 0 is none.
inline void add_answer(double log_pi, double weight, AnswerLoss& loss) {
  loss.sum -= weight * log_pi;
  loss.num_tokens += weight > 0 ? 1 : 0;
}

/// The result of a step. Means are over the loss tokens of the step.
struct TrainReport {
  double loss = 0;
  double entropy_mean = 0;      // nats
  double mismatch_kl_mean = 0;  // k3: r - log r - 1, r = pi / mu
  double mismatch_kl_max = 0;
  double masked_fraction = 0;  // share of tokens whose policy-gradient term was dropped
  double masked_low = 0;       // share by reason (MaskReason); together masked_fraction
  double masked_high = 0;
  double masked_dual = 0;
  double masked_weight = 0;
  double masked_moment = 0;
  double capped_fraction = 0;  // share of tokens whose weight was limited; they train
  double effective_size = 0;   // (sum of r)^2 / (tokens * sum of r^2): 1 = on-policy
  double grad_norm = 0;        // before clipping
  double learning_rate = 0;
  int64_t num_tokens = 0;  // all tokens through the model
  int64_t num_loss_tokens = 0;
  /// Tokens of all tenants in its last pass; 0: its only pass had no other tenant. The time of a
  /// step is the time of that pass times the step's part of these tokens; the part is above 1 if it
  /// had several passes.
  int64_t num_pass_tokens = 0;
  int32_t num_micro_batches = 0;
  StepMeasures measures;  // for people
  bool skipped = false;   // no loss tokens, or a non-finite gradient: weights unchanged
  std::string skip_reason;

  template <class F>
  static void fields(F& f) {
    using R = TrainReport;
    f("loss", &R::loss)("entropy_mean", &R::entropy_mean)("mismatch_kl_mean", &R::mismatch_kl_mean)(
        "mismatch_kl_max", &R::mismatch_kl_max)("masked_fraction", &R::masked_fraction)(
        "masked_low", &R::masked_low)("masked_high", &R::masked_high)(
        "masked_dual", &R::masked_dual)("masked_weight", &R::masked_weight)(
        "masked_moment", &R::masked_moment)("capped_fraction", &R::capped_fraction)(
        "effective_size", &R::effective_size)("grad_norm", &R::grad_norm)(
        "learning_rate", &R::learning_rate)("num_tokens", &R::num_tokens)(
        "num_loss_tokens", &R::num_loss_tokens)("num_pass_tokens", &R::num_pass_tokens)(
        "num_micro_batches", &R::num_micro_batches)("measures", &R::measures)(
        "skipped", &R::skipped)("skip_reason", &R::skip_reason);
  }
};

/// Called between micro-batches; true makes the learner stop and discard the step (kCancelled).
/// Each call is a sign of life: a learner on the CPU also calls it after each layer of a
/// micro-batch, where the answer has no effect.
using StopRequested = std::function<bool()>;

/// The content of the files of save(), copied by capture(). Valid while its learner exists.
class LearnerImage {
 public:
  virtual ~LearnerImage() = default;
  /// Writes the files of save() into `folder`. Any thread, also while the learner makes steps.
  virtual Status write(const std::filesystem::path& folder) const = 0;
};

/// A checkpoint to be saved: files as of save() into `folder`, then `commit()`. Both may run on
/// another thread.
struct LearnerSave {
  TenantSlot tenant;
  std::filesystem::path folder;
  Time now;  // when it was asked for, by the run's clock
  std::function<Status()> commit;
  Duration lasts_max = Duration::seconds(1800);  // SaveLimit
  bool is_of_client = false;  // a folder that a client asked for, and no checkpoint of the run
};

/// How long a save may last, counted from the first end_of_save(). It is not counted from the
/// request: a resumed run begins the save again, long after the recorded request.
class SaveLimit {
 public:
  explicit SaveLimit(Duration lasts_max) : lasts_max_(lasts_max) {}
  /// For a save that has not ended by `now`: kDeadline once it has lasted too long.
  std::optional<Status> look(Time now);

 private:
  Duration lasts_max_;
  std::optional<Time> first_;
};

class Learner : public Resource, public LateAnswers {
 public:
  static constexpr std::string_view kResourceKind = "learner";
  using Resource::step;  // a learner has no work of its own between calls
  /// One optimizer step. An error leaves weights and optimizer unchanged. One sample that
  /// check_sample() refuses makes the whole batch an error, so check samples before forming
  /// batches.
  virtual Result<TrainReport> step(const TrainBatch& batch,
                                   const StopRequested& stop_requested) = 0;
  /// A step for each of several tenants; results are in the order of `batches`. Each result is what
  /// step() gives, and an error or a skip of one does not affect the others. A stop discards the
  /// unfinished steps.
  virtual std::vector<Result<TrainReport>> step_together(std::span<const TrainBatch* const> batches,
                                                         const StopRequested& stop_requested);
  /// One pass over the model for steps of several tenants, with at most one micro-batch of each;
  /// results are in the order of `batches`. A result is empty if the step needs another pass: call
  /// again with the same batch. Until its last pass a step has changed no weights, and the
  /// gradients of its passes do not depend on other tenants. A learner that does not divide steps
  /// runs whole ones.
  virtual std::vector<std::optional<Result<TrainReport>>> pass_together(
      std::span<const std::shared_ptr<const TrainBatch>> batches,
      const StopRequested& stop_requested);
  /// Upper bound of the tokens of `batch` in the next pass of its step; at least 1.
  virtual int64_t next_tokens(const TrainBatch& batch) const;
  /// Drops the tenant's unfinished step, if there is one, and its open gradients.
  virtual void discard(TenantSlot tenant) { (void)tenant; }
  /// Forward and backward: adds the gradient of the sum of the losses to the tenant's open
  /// gradients, and opens them if none are. Calls before an apply() add up to the bits of one call
  /// with the same micro-batches in the same order. With batch.forward_only nothing is opened or
  /// changed, and no dropout is drawn. A refused batch changes nothing. An error while it computes,
  /// or a stop, discards all open gradients of the tenant, because a part may have been added. The
  /// default refuses: the learner has no halves.
  virtual Result<LossResult> accumulate(const LossBatch& batch,
                                        const StopRequested& stop_requested);
  /// One micro-batch of accumulate(); empty: call again with the same batch. Another batch of the
  /// tenant is refused meanwhile. The default runs the whole call.
  virtual std::optional<Result<LossResult>> accumulate_pass(
      const std::shared_ptr<const LossBatch>& batch, const StopRequested& stop_requested);
  /// Upper bound of the rows of the next accumulate_pass(); at least 1.
  virtual int64_t next_rows(const LossBatch& batch) const;
  /// One AdamW step by the open gradients, which are closed then. Schedule and numbers of the
  /// tenant's options are not used, except the groups without decay. The report has the sum of the
  /// losses as `loss`, the counts of all calls, the norm before the clip and the learning rate; a
  /// gradient that is not finite is skipped, as in step(). An error changes nothing: no gradients
  /// are open, the numbers are not valid, or the tenant's optimizer is not adamw.
  virtual Result<TrainReport> apply(TenantSlot tenant, const AdamNumbers& adam);
  /// Whether the tenant has open gradients, or a call that opens them is not finished. Then step(),
  /// capture(), save() and begin_save() are refused, and load() discards them. For wrappers: an
  /// answer is not recorded. Actors know which calls they made.
  virtual bool has_open_gradients(TenantSlot tenant) const {
    (void)tenant;
    return false;
  }
  /// The current weights of `tenant`, named `version`: an immutable copy. It has the default key;
  /// the caller knows the tenant. Only adapter tensors (adapter.h) if an adapter is trained.
  virtual Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot tenant,
                                                                 PolicyVersion version) = 0;
  /// Log-probability of tokens[i] given tokens[0, i), i >= 1, at temperature 1: [num_tokens - 1].
  virtual Result<std::vector<float>> score(TenantSlot tenant,
                                           const std::vector<int32_t>& tokens) = 0;
  /// The cross-entropy of the batch, which changes nothing; batch.loss is kCrossEntropy. An error
  /// if check_sample() refuses a sample.
  virtual Result<AnswerLoss> evaluate(const TrainBatch& batch);
  /// Writes `weights/` (a Hugging Face folder; a PEFT folder if an adapter is trained) and
  /// `learner/` (optimizer, schedule, random state) into `folder`, which exists. Files are synced;
  /// the caller commits the folder.
  virtual Status save(TenantSlot tenant, const std::filesystem::path& folder) = 0;
  /// A copy of what save() writes. Null: this learner makes none.
  virtual Result<std::shared_ptr<const LearnerImage>> capture(TenantSlot tenant) {
    (void)tenant;
    return std::shared_ptr<const LearnerImage>();
  }
  /// Begins to save the tenant as it is now; end_of_save() has the end. A tenant has one at a time:
  /// the call waits for an earlier one, and forgets its end. The default saves and commits before
  /// it returns.
  virtual Status begin_save(LearnerSave save);
  /// How the save that was begun last has ended, once; empty: it has not ended by `now`. kDeadline
  /// if it lasts longer than `lasts_max`.
  virtual std::optional<Status> end_of_save(TenantSlot tenant, Time now);
  /// `wake` is called when end_of_save() has an end that it did not have before: never by default.
  void set_wake(std::function<void()> wake) override { (void)wake; }
  /// Restores what save() wrote, for any tenant; all or nothing.
  virtual Status load(TenantSlot tenant, const std::filesystem::path& folder) = 0;
  /// The weights of `folder` with the optimizer, schedule and random state of `others`; save()
  /// wrote both for this tenant; they may be one folder. All or nothing. For clients, within a run:
  /// a record has how it ended. The default loads a folder of links to the files of both, which it
  /// makes beside `folder` and removes again.
  virtual Status load_weights(TenantSlot tenant, const std::filesystem::path& folder,
                              const std::filesystem::path& others);
  /// Runs a step of one of several tenants pass by pass, when the tenant is next (learner_turns.h):
  /// call it with the same batch in every work call until it returns a result. If a pass is due,
  /// the first caller runs it for all chosen tenants. The others get their results when they call,
  /// later in the same work call.
  virtual std::optional<Result<TrainReport>> step_queued(std::shared_ptr<const TrainBatch> batch,
                                                         uint64_t turn,
                                                         const StopRequested& stop_requested);
  /// accumulate(), micro-batch by micro-batch, in the queue of step_queued(): the same shares and
  /// the same rules of the calls. Micro-batches of several tenants run one after another.
  virtual std::optional<Result<LossResult>> accumulate_queued(
      std::shared_ptr<const LossBatch> batch, uint64_t work_call,
      const StopRequested& stop_requested);
  /// The tenant has no batch, or no longer; allowed at any time between work calls. If its
  /// accumulate() was not finished, its open gradients are discarded.
  virtual void leave_queue(TenantSlot tenant);
  /// A tenant joins in a free slot. Its adapter, optimizer, schedule, clip and loss have the bits
  /// of a learner that was made with it; so an end_tenant() before it starts a tenant anew. All or
  /// nothing: kExists if the slot is in use, kNotFound if the learner has no such slot, kInvalid if
  /// rank or targets are beyond what it was made for or the rules are not valid. The default
  /// refuses.
  virtual Status begin_tenant(const AdapterTraining& tenant);
  /// The tenant leaves: drops its adapter, optimizer and open gradients, its unfinished step, and
  /// its place in the queue, and forgets what it was served. A save that is being written ends
  /// first; one that has not begun is cancelled. Later calls for the slot are refused (kNotFound)
  /// until the next begin_tenant(). A slot that is free is ignored; whole weights belong to no
  /// tenant, and stay.
  virtual void end_tenant(TenantSlot tenant);
  /// The tenant's share, above 0, from the next pass on.
  virtual void set_share(TenantSlot tenant, double share) { turns_.set_share(tenant, share); }
  /// Call before the first step. `shares` by tenant slot; `tokens_max` limits passes that several
  /// tenants share.
  void share_out(const std::vector<double>& shares, int64_t tokens_max) {
    turns_ = LearnerTurns(shares, tokens_max);
  }
  /// The limits of every sample; constant while the learner exists.
  virtual SampleLimits limits() const = 0;

 private:
  /// Exactly one of the two batches is set.
  struct Waiting {
    std::shared_ptr<const TrainBatch> batch = {};
    std::shared_ptr<const LossBatch> loss_batch = {};
    int64_t num_tokens = 0;  // in its next pass
  };

  void run_pass(const std::vector<TenantSlot>& tenants, const StopRequested& stop_requested);
  void run_steps(const std::vector<TenantSlot>& tenants, const StopRequested& stop_requested);
  void run_accumulate(TenantSlot tenant, const StopRequested& stop_requested);
  void ask(TenantSlot tenant, Waiting next, uint64_t work_call,
           const StopRequested& stop_requested);

  std::map<TenantSlot, Status> saved_;  // ends that were not asked for
  LearnerTurns turns_;
  // At most one per tenant.
  std::map<TenantSlot, Waiting> queue_;
  std::set<TenantSlot> in_progress_;  // tenants whose call had a pass and needs another
  // Results of a pass that were not fetched yet.
  std::map<TenantSlot, Result<TrainReport>> reports_;
  std::map<TenantSlot, Result<LossResult>> loss_results_;
};

}  // namespace primerl
