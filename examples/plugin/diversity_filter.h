/// An actor: filters out groups whose members have nearly equal answers.
///
///   group -> [ diversity_filter ] -> kept
///                                 ~~~> ended
///
/// Threads: pooled. State: none. Order: kept groups are sent in order of arrival.
#pragma once

#include "actors/messages/rollout.h"
#include "graph/contract.h"

namespace word_games {

struct DiversityFilterOptions {
  int64_t answers_min = 2;  // different answers among a group's members
};

class DiversityFilter final : public primerl::Actor {
 public:
  using Options = DiversityFilterOptions;
  static primerl::Contract contract();
  explicit DiversityFilter(const DiversityFilterOptions& options) : options_(options) {}

 private:
  primerl::Status on_group(const primerl::TrajectoryGroup& group);
  void refuse_group(const primerl::TrajectoryGroup& group, const primerl::Error& error);

  // Constant after construction.
  const DiversityFilterOptions options_;
  primerl::Out<primerl::TrajectoryGroup> kept_;
  primerl::Out<primerl::GroupEnded> ended_;
};

}  // namespace word_games
