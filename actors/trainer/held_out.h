/// HeldOut: the rows of supervised data that do not train. The trainer measures their loss at
/// intervals of versions.
///
/// Plain data, no messages, no time. Rows come before the first training group, so that the first
/// training group shows that all rows are there. An evaluation goes through the rows in parts of
/// about kEvaluatedTokens, so that a work call is short.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "actors/messages/rollout.h"
#include "graph/tenant.h"
#include "kernels/train/learner.h"

namespace primerl {

/// Most tokens of all held-out rows of a tenant: saved state has them.
inline constexpr int64_t kHeldOutTokensMax = int64_t{1} << 20;
/// Tokens of one part of an evaluation; a longer row is one part.
inline constexpr int64_t kEvaluatedTokens = 8192;

class HeldOut {
 public:
  /// Adds a row. An error if it has no loss token, if the learner would refuse it, or if it is too
  /// much; then no later row is added.
  Status add(const Trajectory& member, const SampleLimits& limits);
  /// Whether `version` has to be measured: it is a multiple of the interval, or the first or last
  /// one. `are_complete`: a training group has come.
  bool is_due(PolicyVersion version, const TenantEval& eval, bool is_last, bool are_complete) const;
  /// The next part of the running evaluation.
  TrainBatch next_part(TenantSlot tenant) const;
  /// Adds the loss of next_part(). The mean loss of a token after the last part.
  std::optional<double> add(const AnswerLoss& loss, PolicyVersion version);
  size_t num_rows() const { return rows_.size(); }
  /// A row was too much.
  bool is_full() const { return num_tokens_ > kHeldOutTokensMax; }
  PolicyVersion start() const { return start_; }
  /// The version that a run starts from, before rows come.
  void start_at(PolicyVersion version, bool is_resumed);

  template <class F>
  static void fields(F& f) {
    using H = HeldOut;
    f("rows", &H::rows_)("num_tokens", &H::num_tokens_)("evaluated", &H::evaluated_)(
        "next", &H::next_)("sum", &H::sum_)("start", &H::start_)("is_resumed", &H::is_resumed_);
  }

 private:
  struct Row {
    std::vector<int32_t> tokens;
    std::vector<uint8_t> trains;
    std::vector<float> weights;
    template <class F>
    static void fields(F& f) {
      f("tokens", &Row::tokens)("trains", &Row::trains)("weights", &Row::weights);
    }
  };
  /// The row after the last one of the next part.
  size_t part_end() const;

  // Constant after start_at(), but saved: an actor that is made again does not know its start.
  PolicyVersion start_;
  bool is_resumed_ = false;
  std::vector<Row> rows_;
  int64_t num_tokens_ = 0;   // of all rows, with the first one that was too much
  PolicyVersion evaluated_;  // last version that was measured
  size_t next_ = 0;          // row of the running evaluation
  AnswerLoss sum_;           // of its rows so far
};

}  // namespace primerl
