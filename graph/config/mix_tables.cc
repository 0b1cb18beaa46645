// Curricula, and an item of `[[tenant.x.environments]]`: the keys of a tenant that it may replace.
#include <algorithm>

#include "graph/config/tables.h"

namespace primerl {
namespace {

/// The keys of a tenant that one of its environments may replace.
bool is_of_environment(const OptionField& field) {
  constexpr std::string_view kReplaced[] = {
      "seq_len", "turns_max", "rollout_timeout", "environment_timeout", "sampling",
      "filters", "eval",      "advantage",       "curriculum"};
  return std::ranges::find(kReplaced, field.name) != std::end(kReplaced);
}

OptionSet make_mix_options() {
  using T = Tenant;
  OptionSet options =
      OptionsOf<T>()
          .field("name", &T::label, between(0, 64),
                 "the environment's name in metrics and lines; \"\" = that of the environment")
          .field("weight", &T::weight, between(1, kEnvironmentWeightMax) | unit("tasks"),
                 "its tasks in each cycle")
          .take();
  for (OptionField field : tenant_options().fields) {
    if (!is_of_environment(field)) continue;
    if (field.name == "eval") {
      // When evaluations run is the same for all.
      auto own = std::make_shared<OptionSet>(*field.table);
      std::erase_if(own->fields, [](const OptionField& each) {
        return each.name == "interval" || each.name == "at_start" || each.name == "at_end";
      });
      field.table = std::move(own);
    }
    options.fields.push_back(std::move(field));
  }
  return options;
}

}  // namespace

OptionSet curriculum_options() {
  using C = TenantCurriculum;
  using P = DifficultyPool;
  using S = CurriculumStage;
  const Constraint reward = between(-kNoReward, kNoReward);
  auto pools = OptionsOf<P>()
                   .field("threshold", &P::threshold, reward, "lowest mean reward of its rows")
                   .field("weight", &P::weight, between(0, 1000),
                          "how often each of them is given; 0 = never")
                   .take();
  auto stages =
      OptionsOf<S>()
          .field("most", &S::most, reward, "largest value of the field of its rows; 2e6 = all rows")
          .field("reward", &S::reward, reward,
                 "mean reward of `groups` groups at which the next stage begins; -2e6 = "
                 "any")
          .field("groups", &S::groups, count_from(1) | unit("groups"),
                 "groups after which the mean is taken; then it begins anew")
          .take();
  return OptionsOf<C>()
      .field("rows", &C::rows, between(0, 1 << 30) | unit("rows"),
             "number of tasks, for environments that do not count their rows; 0 = the rows of the "
             "environment")
      .field("easy_threshold", &C::easy_threshold, reward,
             "rows whose last group had this mean reward or more are given no more; 2e6 = off")
      .field("hard_threshold", &C::hard_threshold, reward,
             "the same for this mean reward or less; -2e6 = off")
      .field("easy_fraction", &C::easy_fraction, between(0, 1),
             "share of the easy rows that return when a run starts from a checkpoint")
      .field("hard_fraction", &C::hard_fraction, between(0, 1), "the same of the hard rows")
      .field("unseen_weight", &C::unseen_weight, between(0, 1000),
             "how often a row without a group is given, compared with the weights of `pools`")
      .tables("pools", &C::pools, kCurriculumPoolsMax, std::move(pools),
              "weights of rows by the mean reward of their last group; rows below all thresholds "
              "have the weight of unseen rows")
      .field("field", &C::field, any(),
             "field of a row with a number that `stages` compare; \"\" = the number of the row, "
             "from 0")
      .tables("stages", &C::stages, kCurriculumPoolsMax, std::move(stages),
              "parts of the rows, one after the other; the last one lasts")
      .take();
}

const OptionSet& mix_options() {
  static const OptionSet options = make_mix_options();
  return options;
}

}  // namespace primerl
