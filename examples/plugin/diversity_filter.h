/// An actor: keeps groups whose members all say nearly the same away from the trainer.
///
///   group -> [ diversity_filter ] -> kept
///                                 ~~~> ended
///
/// Threads: pooled. State: none. Order: kept groups leave in the order they came.
#pragma once

#include "actors/messages/rollout.h"
#include "graph/contract.h"

namespace word_games {

struct DiversityFilterOptions {
  int64_t answers_min = 2;  // different ones among a group's members
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
