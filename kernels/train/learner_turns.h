/// LearnerTurns: chooses which tenants of one learner take part in the next pass.
///
/// A tenant with a complete batch joins the queue and asks in every work call until it is trained,
/// once for each pass of its step. The next tenant is the one that trained the fewest tokens
/// relative to its share (FairShares). The pass is filled with the tenants after it, in this order,
/// while all of them have at most `tokens_max` tokens and none is further ahead of the next tenant
/// than that. So tenants that always have a batch get tokens in proportion to their shares,
/// whatever the size of a batch. A tenant waits for at most `tokens_max` tokens of others in its
/// pass. A pass larger than `tokens_max` is not shared. A tenant without a batch delays no other.
///
/// A turn here is one work call of the learner's group, in which every trainer asks once. Between
/// two passes there is one work call in which all can join the queue, in any order. A tenant trains
/// only if it was in the queue in the work call before; so all tenants of a pass get their results
/// within one work call.
///
/// A value; not thread-safe. Not saved: after a restart all tenants start equal.
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
  /// `shares` by tenant slot.
  LearnerTurns(const std::vector<double>& shares, int64_t tokens_max)
      : shares_(shares), tokens_max_(tokens_max) {}

  /// `tenant` has a complete batch, whose next pass has `num_tokens`. Returns the tenants that
  /// train now, the next one first; may be empty. They have left the queue; `tenant` may be one of
  /// them.
  std::vector<TenantSlot> ask(TenantSlot tenant, int64_t num_tokens, uint64_t turn) {
    if (turn_ != turn) ++num_turns_;
    turn_ = turn;
    const auto [found, is_new] = queue_.try_emplace(tenant);
    if (is_new) shares_.enter(tenant);
    std::optional<Waiting>& waiting = found->second;
    const bool has_waited = waiting && waiting->asked + 1 == num_turns_;
    std::vector<TenantSlot> chosen;
    if (has_waited && num_turns_ >= passed_ + 2) {
      chosen = choose();
      passed_ = num_turns_;
      if (!waiting) return chosen;
    }
    waiting = Waiting{num_tokens, num_turns_};
    return chosen;
  }

  /// `tenant` has no batch, or no longer.
  void leave(TenantSlot tenant) {
    if (queue_.erase(tenant) > 0) shares_.leave(tenant);
  }
  /// `tenant` is gone, and another one begins in its slot.
  void forget(TenantSlot tenant) {
    leave(tenant);
    shares_.forget(tenant);
  }
  void set_share(TenantSlot tenant, double share) { shares_.set_share(tenant, share); }

 private:
  struct Waiting {
    int64_t num_tokens = 0;
    uint64_t asked = 0;  // the last work call in which it asked
  };
  using Line = std::map<TenantSlot, std::optional<Waiting>>;

  /// The tenants that asked in the work call before, in order.
  std::vector<TenantSlot> choose() {
    std::vector<TenantSlot> chosen;
    int64_t num_tokens = 0;
    double first = 0;  // tokens per share that the first had been served
    for (auto next = least_served(); next != queue_.end(); next = least_served()) {
      const TenantSlot tenant = next->first;
      const int64_t more = next->second->num_tokens;
      if (chosen.empty()) first = shares_.served(tenant);
      const auto most = static_cast<double>(tokens_max_);
      if (!chosen.empty() &&
          (num_tokens + more > tokens_max_ || shares_.tokens_ahead(tenant, first) > most))
        break;
      chosen.push_back(tenant);
      num_tokens += more;
      next->second.reset();
      shares_.charge(tenant, more);
    }
    return chosen;
  }

  Line::iterator least_served() {
    auto least = queue_.end();
    for (auto it = queue_.begin(); it != queue_.end(); ++it) {
      if (!it->second || it->second->asked + 1 != num_turns_) continue;
      if (least == queue_.end() || shares_.served(it->first) < shares_.served(least->first))
        least = it;
    }
    return least;
  }

  FairShares shares_;
  int64_t tokens_max_ = 0;
  /// Removes `Waiting`: the tenant trained, and did not ask again.
  Line queue_;
  std::optional<uint64_t> turn_;
  uint64_t num_turns_ = 1;
  uint64_t passed_ = 0;  // work call of the last pass
};

}  // namespace primerl
