/// LearnerTurns: which of several tenants on one learner take part in the next pass.
///
/// A tenant whose batch is complete gets in line and asks in every turn until it is trained, once
/// for each pass of its step. Next is who has trained the fewest tokens for its share (FairShares).
/// The pass is filled up with those who are next after that, in this order, as long as all of them
/// have at most `tokens_max` tokens and none is further ahead of who is next than that. So tenants
/// that always have a batch get tokens in the proportion of their shares, whatever the size of a
/// batch, and nobody waits for more than `tokens_max` tokens of those who are taken along. A larger
/// pass has no company. Who has no batch holds nobody up. A turn is one work turn of the learner's
/// group, in which every trainer is asked once: between two passes lies one turn in which all can
/// get in line, whatever their order. Who trains was in line the turn before, so all of a pass hear
/// of it within one turn.
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
  /// `shares` by tenant slot.
  LearnerTurns(const std::vector<double>& shares, int64_t tokens_max)
      : shares_(shares), tokens_max_(tokens_max) {}

  /// `tenant` has a complete batch, whose next pass has `num_tokens`. Returns who trains now, next
  /// one first: nobody, or tenants that are in line no more, `tenant` among them or not.
  std::vector<TenantSlot> ask(TenantSlot tenant, int64_t num_tokens, uint64_t turn) {
    if (turn_ != turn) ++num_turns_;
    turn_ = turn;
    const auto [found, is_new] = line_.try_emplace(tenant);
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

  /// `tenant` has no batch, or none any more.
  void leave(TenantSlot tenant) {
    if (line_.erase(tenant) > 0) shares_.leave(tenant);
  }

 private:
  struct Waiting {
    int64_t num_tokens = 0;
    uint64_t asked = 0;  // the last turn in which it asked
  };
  using Line = std::map<TenantSlot, std::optional<Waiting>>;

  /// Those who asked in the turn before, in the order of who is next.
  std::vector<TenantSlot> choose() {
    std::vector<TenantSlot> chosen;
    int64_t num_tokens = 0;
    double first = 0;  // what the first had been served
    for (auto next = least_served(); next != line_.end(); next = least_served()) {
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
    auto least = line_.end();
    for (auto it = line_.begin(); it != line_.end(); ++it) {
      if (!it->second || it->second->asked + 1 != num_turns_) continue;
      if (least == line_.end() || shares_.served(it->first) < shares_.served(least->first))
        least = it;
    }
    return least;
  }

  FairShares shares_;
  int64_t tokens_max_ = 0;
  /// Without Waiting: it has trained, and did not ask again.
  Line line_;
  std::optional<uint64_t> turn_;
  uint64_t num_turns_ = 1;
  uint64_t passed_ = 0;  // turn of the last pass
};

}  // namespace primerl
