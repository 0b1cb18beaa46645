#include "diversity_filter.h"

#include <fmt/format.h>

#include <set>

namespace word_games {
namespace {

using primerl::GroupEnded;
using primerl::RolloutEnd;
using primerl::Trajectory;
using primerl::TrajectoryGroup;

std::vector<int32_t> answer_of(const Trajectory& member) {
  std::vector<int32_t> answer;
  for (size_t i = 0; i < member.tokens.size(); ++i)
    if (member.sampled[i] != 0) answer.push_back(member.tokens[i]);
  return answer;
}

GroupEnded end_of(const TrajectoryGroup& group, RolloutEnd how, std::string reason) {
  GroupEnded ended;
  ended.ordinal = group.ordinal;
  ended.attempt = group.attempt;
  ended.end = how;
  ended.reason = std::move(reason);
  return ended;
}

}  // namespace

primerl::Contract DiversityFilter::contract() {
  using O = DiversityFilterOptions;
  return primerl::ContractOf<DiversityFilter, O>("diversity_filter",
                                                 "keeps groups of one opinion from the trainer")
      .option("answers_min", &O::answers_min, primerl::at_least(1) | primerl::unit("answers"),
              "different ones among a group's members")
      .in("group", &DiversityFilter::on_group, "a finished group",
          primerl::refuse_with(&DiversityFilter::refuse_group))
      .out("kept", &DiversityFilter::kept_, "groups with enough different answers")
      .out("ended", &DiversityFilter::ended_, "the answer to every other group")
      .restartable()
      .stateless();
}

primerl::Status DiversityFilter::on_group(const TrajectoryGroup& group) {
  std::set<std::vector<int32_t>> answers;
  for (const Trajectory& member : group.members) answers.insert(answer_of(member));
  const auto count = static_cast<int64_t>(answers.size());
  if (count >= options_.answers_min) {
    kept_.send(group);
    return primerl::ok();
  }
  services().count("groups_of_one_opinion", 1);
  ended_.send(end_of(group, RolloutEnd::kFiltered, fmt::format("{} different answers", count)));
  return primerl::ok();
}

void DiversityFilter::refuse_group(const TrajectoryGroup& group, const primerl::Error& error) {
  ended_.send(end_of(group, RolloutEnd::kFailed, error.message()));
}

}  // namespace word_games
