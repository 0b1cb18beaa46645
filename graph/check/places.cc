// Binding of [place], and its rules.
#include <algorithm>
#include <charconv>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

bool is_device(std::string_view text) {
  if (text == "cpu") return true;
  if (text.rfind("cuda:", 0) != 0) return false;
  const std::string_view number = text.substr(5);
  int index = 0;
  const auto [end, fault] = std::from_chars(number.data(), number.data() + number.size(), index);
  return fault == std::errc() && end == number.data() + number.size() && index >= 0 && index < 64;
}

/// The strings of `nodes = [...]`; empty where the value has another type, which was reported.
std::vector<const Value*> listed_nodes(const NamedTable& spec) {
  std::vector<const Value*> values;
  const Entry* nodes = spec.table->find("nodes");
  if (nodes == nullptr || !nodes->value.is_array()) return values;
  for (const auto& value : nodes->value.as_array())
    if (value.is_string()) values.push_back(&value);
  return values;
}

bool has_compute(const Draft& draft, int32_t place) {
  return std::any_of(draft.resources.begin(), draft.resources.end(), [&](const auto& resource) {
    // What could not be resolved may compute.
    if (resource.contract == nullptr) return true;
    return resource.contract->computes &&
           std::any_of(resource.users.begin(), resource.users.end(), [&](int32_t user) {
             return draft.nodes[static_cast<size_t>(user)].place == place;
           });
  });
}

}  // namespace

void bind_places(Draft& draft) {
  if (draft.spec.places == nullptr) {
    for (auto& node : draft.nodes) node.place = 0;
    return;
  }
  for (size_t index = 0; index < draft.spec.place.size(); ++index) {
    DraftPlace place;
    place.spec = &draft.spec.place[index];
    place_options().bind(*place.spec->table, fmt::format("place '{}'", place.spec->name), {},
                         &place.options, draft.diagnostics);
    for (const Value* value : listed_nodes(*place.spec)) {
      const auto found = draft.node_by_name.find(value->as_string());
      if (found == draft.node_by_name.end()) {
        std::vector<std::string> known;
        for (const auto& node : draft.nodes) known.push_back(node.spec->name);
        auto& fault = draft.diagnostics.error("G011", value->span, "there is no node '{}'",
                                              value->as_string());
        fault.note(fmt::format("nodes: {}", join_names(known)));
        suggest_name(fault, value->as_string(), known);
        continue;
      }
      auto& node = draft.nodes[static_cast<size_t>(found->second)];
      if (node.place < 0) {
        node.place = static_cast<int32_t>(index);
        continue;
      }
      draft.diagnostics.error("G050", value->span, "node '{}' is placed twice", node.spec->name)
          .note(fmt::format("it is in place '{}' already",
                            draft.spec.place[static_cast<size_t>(node.place)].name));
    }
    draft.places.push_back(std::move(place));
  }
}

void check_places(Draft& draft) {
  if (draft.spec.places == nullptr) return;
  std::vector<std::string> names;
  for (const auto& place : draft.spec.place) names.push_back(place.name);
  for (const auto& node : draft.nodes)
    if (node.place < 0)
      draft.diagnostics
          .error("G051", node.spec->name_span, "node '{}' has no place", node.spec->name)
          .note(fmt::format("places: {}", names.empty() ? "none" : join_names(names)))
          .suggest(
              "add it to the nodes of a place, or take [place] out: then all run in one "
              "process");
}

void check_devices(Draft& draft) {
  for (size_t index = 0; index < draft.places.size(); ++index) {
    const auto& place = draft.places[index];
    const Entry* device = place.spec->table->find("device");
    if (device == nullptr || !device->value.is_string()) continue;
    if (!is_device(place.options.device)) {
      draft.diagnostics.error("G052", device->value.span, "'{}' is no device", place.options.device)
          .note("devices: cpu, cuda:0, cuda:1, ...");
      continue;
    }
    if (has_compute(draft, static_cast<int32_t>(index))) continue;
    draft.diagnostics
        .error("G053", device->value.span,
               "place '{}' has a device, but none of its nodes computes", place.spec->name)
        .note("a device is for the engine or learner that a node of the place uses")
        .suggest("take 'device' out");
  }
}

}  // namespace primerl
