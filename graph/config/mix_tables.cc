// An item of `[[tenant.x.environments]]`: the keys of a tenant that it may replace.
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

const OptionSet& mix_options() {
  static const OptionSet options = make_mix_options();
  return options;
}

}  // namespace primerl
