// Rules about [tenant.*] sampling: limits of the items of its lists, which options cannot state.
#include <algorithm>
#include <span>

#include "graph/check/rules.h"

namespace primerl {

void check_stops(Draft& draft) {
  constexpr size_t kTextBytesMax = 256;
  int64_t num_ids = int64_t{INT32_MAX} + 1, vocabulary = 0;
  for (const auto& model : draft.models)
    if (model.is_named && model.facts) vocabulary = std::max(vocabulary, model.facts->vocab_size);
  if (vocabulary > 0) num_ids = vocabulary;
  for (const auto& tenant : draft.tenants) {
    const Entry* sampling = tenant.spec->table->find("sampling");
    if (sampling == nullptr || !sampling->value.is_table()) continue;
    const auto items = [&](std::string_view key) -> std::span<const Value> {
      const Entry* entry = sampling->value.as_table().find(key);
      if (entry == nullptr || !entry->value.is_array()) return {};
      return entry->value.as_array();
    };
    for (const Value& text : items("stop")) {
      if (!text.is_string()) continue;
      const size_t size = text.as_string().size();
      if (size >= 1 && size <= kTextBytesMax) continue;
      draft.diagnostics
          .error("G073", text.span, "a stop text of tenant '{}' has {} bytes", tenant.spec->name,
                 size)
          .note(fmt::format("a stop text has 1 to {} bytes", kTextBytesMax));
    }
    for (const Value& id : items("stop_ids")) {
      if (!id.is_integer() || (id.as_integer() >= 0 && id.as_integer() < num_ids)) continue;
      draft.diagnostics
          .error("G073", id.span, "{} of tenant '{}' is not a token id", id.as_integer(),
                 tenant.spec->name)
          .note(fmt::format("ids are from 0 to {}; for texts use `stop`", num_ids - 1));
    }
  }
}

}  // namespace primerl
