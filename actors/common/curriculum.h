/// Curriculum: which rows of an environment are given, by the rewards of the groups made of them
/// (`[tenant.x] curriculum`, docs/design/environments.md).
///
/// RowPools knows the pool of each row; Env and Trainer each have one, from the same groups.
/// RowWalk is Env's walk over the rows: it goes through them in the order of the environment, again
/// and again, and gives a row with a probability that is the weight of its pool divided by the
/// largest of the options. If all rows are far below that one, the largest of the rows counts
/// instead. A row is one byte, so 10 million rows are 10 MB in each. Plain values; not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/json.h"
#include "graph/tenant.h"

namespace primerl {

/// The pool of each row, named by a number: unseen, hard, normal, those of `pools`, easy.
class RowPools {
 public:
  static constexpr uint8_t kUnseen = 0, kHard = 1, kNormal = 2;

  /// A group of the row ended with this mean reward.
  void add(const TenantCurriculum& options, uint64_t row, double reward);
  uint8_t pool_of(uint64_t row) const { return row < pools_.size() ? pools_[row] : kUnseen; }
  /// The rows of each pool, in the order of pool_names().
  std::vector<int64_t> counts(const TenantCurriculum& options) const;
  /// The share of hard and easy rows that `options` states is unseen again; `key` chooses them.
  void return_rows(const TenantCurriculum& options, uint64_t key);

  /// One character for each row, with the count of equal ones after it, and the thresholds.
  Json to_json(const TenantCurriculum& options) const;
  /// Without an entry for a row it is unseen; so are all if the thresholds have changed.
  static Result<RowPools> from_json(const TenantCurriculum& options, const Json& json);

  template <class F>
  static void fields(F& f) {
    f("pools", &RowPools::pools_);
  }
  friend bool operator==(const RowPools&, const RowPools&) = default;

 private:
  std::vector<uint8_t> pools_;  // by row; rows after the last one are unseen
};

/// The key of a manifest with the curricula, by the environment's label.
inline constexpr std::string_view kCurricula = "curricula";
/// The key of return_rows() when a run starts from a checkpoint, after `num_resumes` starts.
uint64_t return_key(const Tenant& tenant, int64_t num_resumes);

/// "unseen", "hard", "normal", "pool_0", ..., "easy".
std::vector<std::string> pool_names(const TenantCurriculum& options);
double weight_of(const TenantCurriculum& options, uint8_t pool);

/// Most positions of the walk that one call passes.
inline constexpr int64_t kWalkStepsMax = 65536;

class RowWalk {
 public:
  struct Row {
    uint64_t row = 0;
    uint64_t position = 0;
  };
  /// The rest of what next() asks; the same in each call.
  struct Rules {
    const TenantCurriculum& options;
    std::function<uint64_t(uint64_t position)> row_at;  // a row of the environment
    const std::vector<uint8_t>& stage_of;               // of each row, if there are stages
    uint64_t key = 0;                                   // of its random numbers
  };
  /// The next row; empty: kWalkStepsMax positions had none, call again.
  std::optional<Row> next(const Rules& rules, const RowPools& pools);
  /// A group ended; whether the next stage begins.
  bool add(const TenantCurriculum& options, const RowPools& pools, uint64_t row, double reward);
  /// Continues after these, as a checkpoint says.
  void begin_at(uint64_t position, uint32_t stage) {
    next_ = position;
    stage_ = stage;
  }
  uint32_t stage() const { return stage_; }
  /// No row of the stage had a weight: all of its rows are given.
  bool is_exhausted() const { return is_exhausted_; }

  template <class F>
  static void fields(F& f) {
    using W = RowWalk;
    f("next", &W::next_)("stage", &W::stage_)("reward", &W::reward_)("num_groups", &W::num_groups_)(
        "num_passed", &W::num_passed_)("is_exhausted", &W::is_exhausted_)("scale", &W::scale_)(
        "num_rejected", &W::num_rejected_)("largest_rejected", &W::largest_rejected_);
  }

 private:
  /// Whether chance gives a row of this weight, which is above 0, at this position.
  bool gives(const Rules& rules, uint64_t position, double weight);

  uint64_t next_ = 0;  // position
  uint32_t stage_ = 0;
  double reward_ = 0;  // sum of the last groups of the stage
  int64_t num_groups_ = 0;
  int64_t num_passed_ = 0;  // positions in a row whose row could not be given
  bool is_exhausted_ = false;
  double scale_ = 0;             // what weights are divided by; 0: the largest of the options
  int64_t num_rejected_ = 0;     // positions since the last row that was given
  double largest_rejected_ = 0;  // weight of a row among them
};

}  // namespace primerl
