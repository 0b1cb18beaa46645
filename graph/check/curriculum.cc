// Rules about curricula: which rows of an environment are given how often.
#include <algorithm>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

class CurriculumRules {
 public:
  CurriculumRules(Draft& draft, DraftTenant& drafted, const Tenant& tenant)
      : draft_(draft), drafted_(drafted), tenant_(tenant), own_(drafted.tenant.curriculum) {}

  void check() {
    if (!own_.is_on()) return;
    check_thresholds();
    check_pools();
    check_stages();
    check_rows();
  }

 private:
  Diagnostic& refuse(std::string_view key, std::string message) {
    return draft_.diagnostics.error("G085", nested_span(*drafted_.spec, key), "{}", message);
  }
  std::string quoted() const {
    return fmt::format("environment '{}' of tenant '{}'", drafted_.tenant.environment_label(),
                       tenant_.name);
  }

  void check_thresholds() {
    if (own_.hard_threshold < own_.easy_threshold) return;
    refuse("curriculum.easy_threshold",
           fmt::format("'curriculum.easy_threshold' {} of {} is not above hard_threshold {}",
                       own_.easy_threshold, quoted(), own_.hard_threshold));
  }

  void check_pools() {
    double last = own_.hard_threshold;
    for (size_t i = 0; i < own_.pools.size(); ++i) {
      const double threshold = own_.pools[i].threshold;
      const bool is_first = i == 0 && own_.hard_threshold == -kNoReward;
      if ((threshold > last || is_first) && threshold < own_.easy_threshold) {
        last = threshold;
        continue;
      }
      refuse("curriculum.pools",
             fmt::format("the threshold {} of pool {} of {} is not between {} and {}", threshold, i,
                         quoted(), last, own_.easy_threshold))
          .note("thresholds rise, from above hard_threshold to below easy_threshold");
      return;
    }
    const bool has_weight =
        own_.unseen_weight > 0 ||
        std::ranges::any_of(own_.pools, [](const DifficultyPool& pool) { return pool.weight > 0; });
    if (own_.unseen_weight == 0 && has_weight)
      refuse("curriculum.unseen_weight",
             fmt::format("'curriculum.unseen_weight' of {} is 0: no row would ever get a group",
                         quoted()))
          .suggest("write a small weight, such as 0.01");
    else if (!has_weight)
      refuse("curriculum.unseen_weight", fmt::format("no row of {} has a weight", quoted()));
  }

  void check_stages() {
    for (size_t i = 1; i < own_.stages.size(); ++i) {
      if (own_.stages[i].most > own_.stages[i - 1].most) continue;
      refuse("curriculum.stages",
             fmt::format("stage {} of {} has the rows up to {}, which is not above the {} of the "
                         "stage before",
                         i, quoted(), own_.stages[i].most, own_.stages[i - 1].most))
          .note("each stage adds rows");
      return;
    }
    if (own_.stages.empty() && !own_.field.empty())
      refuse("curriculum.field", fmt::format("'curriculum.field' of {} has no effect without "
                                             "'stages'",
                                             quoted()));
  }

  void check_rows() {
    const EnvironmentContract* environment = drafted_.tenant.environment.contract;
    if (environment == nullptr) return;
    if (tenant_.epochs > 0)
      refuse("curriculum", fmt::format("{} has a curriculum, which gives rows more or less often "
                                       "than once in a pass, but the tenant counts 'epochs'",
                                       quoted()))
          .suggest("leave 'epochs' out, and write max_steps");
    int64_t num_rows = 0;
    if (environment->rows) {
      const auto rows = environment->rows(drafted_.tenant.environment.options.get());
      if (!rows.ok()) return;
      num_rows = rows->num_training;
    }
    if (num_rows > 0 && own_.rows != 0 && own_.rows != num_rows)
      refuse("curriculum.rows", fmt::format("'curriculum.rows' is {}, but {} has {} rows",
                                            own_.rows, quoted(), num_rows))
          .suggest("leave it out");
    if (num_rows > 0) own_.rows = num_rows;
    if (own_.rows == 0)
      refuse("curriculum.rows", fmt::format("{} does not say how many rows it has", quoted()))
          .suggest("write rows = N in its curriculum: tasks 0 to N - 1 are the rows");
    check_field(*environment);
  }

  void check_field(const EnvironmentContract& environment) {
    if (own_.field.empty() || own_.stages.empty()) return;
    if (!environment.check_field) {
      refuse("curriculum.field", fmt::format("{} has no rows with fields, only numbers", quoted()))
          .suggest("leave 'field' out: then stages compare the number of the task");
      return;
    }
    const Status valid =
        environment.check_field(drafted_.tenant.environment.options.get(), own_.field);
    if (!valid.ok())
      refuse("curriculum.field",
             fmt::format("'curriculum.field' of {}: {}", quoted(), valid.error().text()));
  }

  Draft& draft_;
  DraftTenant& drafted_;
  const Tenant& tenant_;
  TenantCurriculum& own_;
};

}  // namespace

void check_curricula(Draft& draft) {
  for (DraftTenant& drafted : draft.tenants) {
    if (drafted.mix.empty()) CurriculumRules(draft, drafted, drafted.tenant).check();
    for (DraftTenant& part : drafted.mix) CurriculumRules(draft, part, drafted.tenant).check();
  }
}

}  // namespace primerl
