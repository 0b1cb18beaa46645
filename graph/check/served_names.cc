// The names under which clients know the models of a graph.
#include <algorithm>
#include <map>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

bool is_served_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
         std::string_view("/-_.:").find(c) != std::string_view::npos;
}

bool is_served_name(const std::string& name) {
  return !name.empty() && name.size() <= kServedNameBytesMax &&
         std::ranges::all_of(name, is_served_character);
}

}  // namespace

/// Each name has one meaning, whatever tenants there are: a request names a tenant or a model.
void check_served_names(Draft& draft) {
  std::map<std::string, std::string> owners;
  for (const auto& tenant : draft.tenants)
    owners[tenant.spec->name] = fmt::format("tenant '{}'", tenant.spec->name);
  for (const auto& model : draft.models) {
    const Entry* written = model.spec->table->find("served_as");
    for (size_t i = 0; i < model.served_as.size(); ++i) {
      const std::string& name = model.served_as[i];
      const Span span = written->value.is_array() && i < written->value.as_array().size()
                            ? written->value.as_array()[i].span
                            : written->value.span;
      if (!is_served_name(name)) {
        draft.diagnostics
            .error("G017", span, "'{}' is not a valid name for clients of model '{}'", name,
                   model.spec->name)
            .note(fmt::format("letters, digits and '/', '-', '_', '.', ':', at most {} bytes",
                              kServedNameBytesMax));
        continue;
      }
      const auto [owner, is_new] =
          owners.emplace(name, fmt::format("model '{}'", model.spec->name));
      if (is_new) continue;
      draft.diagnostics
          .error("G017", span, "'{}' in 'served_as' of model '{}' is already the name of {}", name,
                 model.spec->name, owner->second)
          .suggest("give each model names of its own");
    }
  }
}

/// The models of all engines and learners but those of judges and teachers, which no tenant trains.
void name_served_models(Draft& draft) {
  std::vector<std::string> names;
  std::string base_model;
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->computes || resource.model < 0 ||
        is_frozen(draft, resource))
      continue;
    const auto& model = draft.models[static_cast<size_t>(resource.model)];
    base_model = model.spec->name;
    for (const auto& name : model.served_as)
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  for (auto& tenant : draft.tenants) {
    tenant.tenant.served_as = names;
    tenant.tenant.base_model = base_model;
  }
}

}  // namespace primerl
