/// Evaluation: when the policy is measured, and the sums of the evaluation that runs.
///
/// A version is due when it becomes live and is a multiple of the interval (or the first one after
/// a multiple that never became live), and the version that a new run starts from. A resumed run
/// measures the version of its checkpoint again if it is a multiple. One evaluation runs at a time;
/// a version that becomes due meanwhile waits, and the newest live one is measured then.
///
/// Values, without messages and time; docs/design/evaluation.md says how they fit into a run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "actors/rollout/group.h"
#include "graph/base/json.h"
#include "graph/base/services.h"
#include "graph/tenant.h"

namespace primerl {

/// 1 - C(n - c, k) / C(n, k): the unbiased estimate, from `num_passed` (c) of `num_samples` (n),
/// that at least one of k samples passes. 1 <= k <= n.
double pass_at_k(int64_t num_samples, int64_t num_passed, int64_t k);

/// The k of which pass@k is reported: 1, 2, 4, ... and `samples` itself.
std::vector<int64_t> pass_counts(int64_t samples);

/// The tenant's sampling with the values that its evaluations change.
TenantSampling evaluation_sampling(const Tenant& tenant);

/// One evaluation.
struct Evaluation {
  PolicyVersion version;         // live when it began
  int64_t num_opened = 0;        // rows
  int64_t num_ended = 0;         // rows
  int64_t num_complete = 0;      // rows without a failed rollout: pass@k is over these
  int64_t num_scored = 0;        // rollouts that have a reward
  int64_t num_failed = 0;        // rollouts
  PolicyVersion oldest, newest;  // that made its tokens
  double reward = 0;             // this and the next ones: sums of scored rollouts
  int64_t num_tokens = 0;        // sampled
  int64_t tokens_max = 0;        // of one rollout
  int64_t num_turns = 0;
  int64_t num_truncated = 0;
  std::vector<double> scores;  // of each reward of the tenant
  std::vector<double> passes;  // sums of pass_at_k() of complete rows, parallel to pass_counts()

  /// Adds a row whose rollouts have all ended.
  void add(const Group& row, const TenantEval& options);

  template <class F>
  static void fields(F& f) {
    using E = Evaluation;
    f("version", &E::version)("num_opened", &E::num_opened)("num_ended", &E::num_ended)(
        "num_complete", &E::num_complete)("num_scored", &E::num_scored)(
        "num_failed", &E::num_failed)("oldest", &E::oldest)("newest", &E::newest)(
        "reward", &E::reward)("num_tokens", &E::num_tokens)("tokens_max", &E::tokens_max)(
        "num_turns", &E::num_turns)("num_truncated", &E::num_truncated)("scores", &E::scores)(
        "passes", &E::passes);
  }
};

/// The line of evaluations.jsonl.
std::string evaluation_line(const Evaluation& evaluation, const Tenant& tenant);
/// The same numbers as metrics: eval/<environment>/avg@k, ...
MetricValues evaluation_metrics(const Evaluation& evaluation, const Tenant& tenant);

class Evaluations {
 public:
  /// Before the first version is live.
  void begin(const TenantEval& options, PolicyVersion start, bool is_resumed);
  void on_live(const TenantEval& options, PolicyVersion live);
  /// Measures the next live version even if it is not a multiple.
  void make_due() { is_due_ = true; }
  /// Begins the evaluation that is due, if none runs.
  void begin_if_due(PolicyVersion live);
  bool has_row_to_open(int64_t num_rows) const {
    return running_ && running_->num_opened < num_rows;
  }
  /// The evaluation that runs; null if none does. Its sums are of the first environment.
  Evaluation* running() { return running_ ? &*running_ : nullptr; }
  /// The sums of one environment of the evaluation that runs.
  Evaluation& of_environment(uint32_t environment) {
    if (environment == 0) return *running_;
    Evaluation& other = others_[environment];
    other.version = running_->version;
    return other;
  }
  /// Rows of all environments.
  int64_t num_ended() const {
    int64_t count = running_ ? running_->num_ended : 0;
    for (const auto& [environment, other] : others_) count += other.num_ended;
    return count;
  }
  void end() {
    running_.reset();
    others_.clear();
  }
  bool is_idle() const { return !running_ && !is_due_; }
  /// The version that was measured last, or is now; empty before the first.
  const std::optional<PolicyVersion>& begun() const { return begun_; }

  template <class F>
  static void fields(F& f) {
    using E = Evaluations;
    f("next", &E::next_)("is_due", &E::is_due_)("begun", &E::begun_)("running", &E::running_)(
        "others", &E::others_);
  }

 private:
  PolicyVersion next_;  // due when it or a newer one is live
  bool is_due_ = false;
  std::optional<PolicyVersion> begun_;
  std::optional<Evaluation> running_;
  std::map<uint32_t, Evaluation> others_;  // of the environments after the first
};

}  // namespace primerl
