/// LearnerTurns: which of several tenants on one learner trains its batch next.
///
/// A tenant whose batch is complete gets in line. Next is who has trained the fewest tokens for its
/// share (FairShares), so tenants that always have a batch get tokens in the proportion of their
/// shares, whatever the size of a batch. Who has no batch holds nobody up. A turn is one work turn
/// of the learner's group, in which every trainer is asked once: between two grants lies one turn
/// in which all can get in line, whatever their order.
///
/// A value; not thread-safe. Not saved: after a restart all begin level.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "graph/base/fair_shares.h"
#include "graph/base/ids.h"

namespace primerl {

class LearnerTurns {
 public:
  LearnerTurns() = default;
  /// By tenant slot.
  explicit LearnerTurns(const std::vector<double>& shares) : shares_(shares) {}

  /// Whether `tenant`, which has a complete batch of `num_tokens`, trains it now. With 0 tokens it
  /// has none and leaves the line. `turn`: any number that is the same within a turn only.
  bool take(TenantSlot tenant, int64_t num_tokens, uint64_t turn) {
    if (turn_ != turn) ++num_turns_;
    turn_ = turn;
    const auto found = line_.find(tenant);
    if (num_tokens == 0) {
      if (found == line_.end()) return false;
      shares_.leave(tenant);
      line_.erase(found);
      return false;
    }
    if (found == line_.end()) {
      shares_.enter(tenant);
      line_[tenant] = num_turns_;
      return false;
    }
    std::optional<uint64_t>& since = found->second;
    if (!since) since = num_turns_;
    if (*since == num_turns_ || num_turns_ < granted_ + 2 || !is_next(tenant)) return false;
    since.reset();
    granted_ = num_turns_;
    shares_.charge(tenant, num_tokens);
    return true;
  }

 private:
  bool is_next(TenantSlot tenant) const {
    for (const auto& [other, since] : line_)
      if (since && (shares_.served(other) < shares_.served(tenant) ||
                    (shares_.served(other) == shares_.served(tenant) && other < tenant)))
        return false;
    return true;
  }

  FairShares shares_;
  /// In line: since which turn its batch waits; none: it has trained, and was not asked again.
  std::map<TenantSlot, std::optional<uint64_t>> line_;
  std::optional<uint64_t> turn_;
  uint64_t num_turns_ = 1;
  uint64_t granted_ = 0;
};

}  // namespace primerl
