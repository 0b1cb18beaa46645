#include "actors/trainer/own_objectives.h"

#include <memory>
#include <utility>

#include "actors/trainer/trainer.h"

namespace primerl {
namespace {

/// `loss` of a learner. Its options are LossOptions whatever the backend.
OptionField* loss_field(ResourceContract& contract) {
  if (contract.kind != "learner") return nullptr;
  for (OptionField& field : contract.options.fields)
    if (field.name == "loss" && field.type == OptionType::kTable) return &field;
  return nullptr;
}

/// The same table, apart from other catalogs, with the choices of `kind`.
std::shared_ptr<OptionSet> with_kinds(const OptionSet& table, std::vector<std::string> names) {
  auto changed = std::make_shared<OptionSet>(table);
  for (OptionField& field : changed->fields)
    if (field.name == "kind") field.constraint.choices = std::move(names);
  return changed;
}

}  // namespace

void add_own_objectives(std::vector<ObjectiveSpec> own, Catalog& catalog) {
  const OwnObjectives all = std::make_shared<const std::vector<ObjectiveSpec>>(std::move(own));
  for (ResourceContract& contract : catalog.resources) {
    OptionField* const loss = loss_field(contract);
    if (loss == nullptr) continue;
    loss->table = with_kinds(*loss->table, objective_names(all));
    contract.options.make = [all, make = contract.options.make, nested = loss->nested] {
      auto options = make();
      static_cast<LossOptions*>(nested(options.get()))->own = all;
      return options;
    };
  }
  for (Contract& actor : catalog.actors)
    if (actor.name == "trainer") actor = Trainer::contract(all);
}

}  // namespace primerl
