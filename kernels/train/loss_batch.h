/// LossBatch and AdamNumbers: the two halves of a training step that a client asks a learner for.
///
/// The fields are those of the Tinker wire: tokens, and for each of them the token that should
/// follow, under a loss that the client names. All losses are sums, never means: the client divides
/// by its weights. The formulas are objectives (loss.h). Plain values and pure functions, any
/// thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/ids.h"
#include "graph/base/result.h"
#include "kernels/train/options.h"

namespace primerl {

struct SampleLimits;  // learner.h

/// One sequence. Arrays of targets are parallel, all [m].
struct LossDatum {
  std::vector<int32_t> tokens = {};     // [n], the tokens that the model reads
  std::vector<int32_t> targets = {};    // [m], tokens that should follow
  std::vector<int32_t> positions = {};  // [m], rising: targets[i] should follow
                                        // tokens[positions[i]]; empty: m = n, targets[i] should
                                        // follow tokens[i]
  std::vector<float> weights = {};      // [m], factors of the losses, also negative; empty: 1
  std::vector<float> logprobs = {};     // [m], at sampling, in nats; empty for cross_entropy
  std::vector<float> advantages = {};   // [m]; empty for cross_entropy

  template <class F>
  static void fields(F& f) {
    using D = LossDatum;
    f("tokens", &D::tokens)("targets", &D::targets)("positions", &D::positions)(
        "weights", &D::weights)("logprobs", &D::logprobs)("advantages", &D::advantages);
  }
  friend bool operator==(const LossDatum&, const LossDatum&) = default;
};

/// The data of one Learner::accumulate().
struct LossBatch {
  TenantSlot tenant;
  LossOptions loss;           // check_client_loss() accepts it
  bool forward_only = false;  // log-probabilities and sums, no gradient
  std::vector<LossDatum> data = {};

  template <class F>
  static void fields(F& f) {
    using B = LossBatch;
    f("tenant", &B::tenant)("loss", &B::loss)("forward_only", &B::forward_only)("data", &B::data);
  }
};

/// Sums over the targets of a call. A target trains if its weight is not 0 and, unless the loss is
/// cross_entropy, its advantage is not 0: clients fill prompts with zeros.
struct LossTotals {
  double loss = 0;         // of all targets, times their weights
  double entropy = 0;      // in nats, of the targets that train; 0 if forward only
  double mismatch_kl = 0;  // r - log r - 1, r = pi / mu, of the targets that train
  int64_t num_trained = 0;
  int64_t num_masked = 0;  // of them: the policy-gradient term was dropped
  int64_t num_capped = 0;  // of them: the weight was limited
  int64_t num_targets = 0;
  int64_t num_tokens = 0;  // rows of the model

  void add(const LossTotals& other);

  template <class F>
  static void fields(F& f) {
    using T = LossTotals;
    f("loss", &T::loss)("entropy", &T::entropy)("mismatch_kl", &T::mismatch_kl)(
        "num_trained", &T::num_trained)("num_masked", &T::num_masked)("num_capped", &T::num_capped)(
        "num_targets", &T::num_targets)("num_tokens", &T::num_tokens);
  }
  friend bool operator==(const LossTotals&, const LossTotals&) = default;
};

/// The answer to a LossBatch.
struct LossResult {
  /// log pi of each target under the weights before the update, in nats, at temperature 1: one
  /// array [m] for each datum.
  std::vector<std::vector<float>> logprobs = {};
  LossTotals totals = {};

  template <class F>
  static void fields(F& f) {
    f("logprobs", &LossResult::logprobs)("totals", &LossResult::totals);
  }
  friend bool operator==(const LossResult&, const LossResult&) = default;
};

/// One AdamW step; the defaults are those of the Tinker wire.
struct AdamNumbers {
  double lr = 1e-4;
  double beta1 = 0.9, beta2 = 0.95;
  double epsilon = 1e-12;
  double weight_decay = 0;  // decoupled: weights shrink by lr * weight_decay
  double max_norm = 0;      // of the whole gradient, in L2; 0: no clip

  template <class F>
  static void fields(F& f) {
    using A = AdamNumbers;
    f("lr", &A::lr)("beta1", &A::beta1)("beta2", &A::beta2)("epsilon", &A::epsilon)(
        "weight_decay", &A::weight_decay)("max_norm", &A::max_norm);
  }
  friend bool operator==(const AdamNumbers&, const AdamNumbers&) = default;
};

/// Refuses numbers that are not finite or out of range, by name.
Status validate(const AdamNumbers& adam);
/// The same, and optimizers that have no such step.
Status check_adam(const AdamNumbers& adam, const OptimizerOptions& optimizer);

/// The loss that the Tinker wire calls `name`, with its numbers: "cross_entropy",
/// "importance_sampling", "ppo" and "cispo" (clip_low_threshold, clip_high_threshold), "dro"
/// (beta). An error names what is unknown or out of range.
Result<LossOptions> tinker_loss(std::string_view name, const std::map<std::string, double>& config);

/// Refuses invalid options, and objectives whose loss of a token depends on other tokens, on a mean
/// or on a reference: a sum over targets has none of these.
Status check_client_loss(const LossOptions& loss);

/// Targets of one position on average: the model computes [vocab_size] numbers for each of them.
inline constexpr int64_t kTargetsPerTokenMax = 64;

/// Refuses a loss as check_client_loss() does, no data, arrays of unequal length, arrays that the
/// loss does not read, positions that are outside or fall, more targets than kTargetsPerTokenMax,
/// tokens and targets outside the vocabulary, more tokens than the limit, and numbers that are not
/// finite or out of range. The error names the datum.
Status check_loss_batch(const LossBatch& batch, const SampleLimits& limits);

/// Rows of the model that a datum needs: up to the last position with a target.
int64_t num_rows(const LossDatum& datum);

}  // namespace primerl
