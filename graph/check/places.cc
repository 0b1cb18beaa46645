// Binding of [place], and its rules.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <utility>

#include "graph/base/device_name.h"
#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

/// The position of the value of a key of a place, or of the place's name.
Span key_span(const DraftPlace& place, std::string_view key) {
  const Entry* entry = place.spec->table->find(key);
  return entry != nullptr ? entry->value.span : place.spec->name_span;
}

/// "0-3,8" as ascending numbers; empty if it is not such a list.
std::optional<std::vector<int32_t>> read_cpus(std::string_view text) {
  constexpr int32_t kCpusMax = 1024;
  std::vector<int32_t> cpus;
  const auto number = [&text](int32_t& value) {
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (fault != std::errc() || value < 0 || value >= kCpusMax) return false;
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    return true;
  };
  while (true) {
    int32_t first = 0;
    if (!number(first)) return std::nullopt;
    int32_t last = first;
    if (!text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      if (!number(last) || last < first) return std::nullopt;
    }
    if (!cpus.empty() && first <= cpus.back()) return std::nullopt;
    for (int32_t cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    if (text.empty()) return cpus;
    if (text.front() != ',') return std::nullopt;
    text.remove_prefix(1);
  }
}

/// "NAME=value" with a name that every shell accepts.
bool is_variable(std::string_view text) {
  const size_t name_end = text.find('=');
  if (name_end == std::string_view::npos || name_end == 0) return false;
  for (size_t i = 0; i < name_end; ++i) {
    const char c = text[i];
    const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
    if (!is_letter && (i == 0 || c < '0' || c > '9')) return false;
  }
  return text.find('\0') == std::string_view::npos;
}

bool is_host(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '-' || c == '_' || c == ':';
  });
}

void check_cpus(Draft& draft, DraftPlace& place) {
  if (place.options.cpus.empty()) return;
  auto cpus = read_cpus(place.options.cpus);
  if (!cpus) {
    draft.diagnostics
        .error("G057", key_span(place, "cpus"), "'{}' is not a list of CPUs", place.options.cpus)
        .note("numbers below 1024 and ranges, ascending: \"0-3,8\"");
    return;
  }
  if (std::cmp_less(cpus->size(), place.options.replicas)) {
    draft.diagnostics
        .error("G057", key_span(place, "cpus"), "place '{}' has {} replicas, but 'cpus' names {}",
               place.spec->name, place.options.replicas, cpus->size())
        .suggest("name at least as many CPUs as replicas, or leave 'cpus' out");
    return;
  }
  place.cpus = *std::move(cpus);
}

/// The strings of `nodes = [...]`; empty if the value has another type, which was reported.
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
    // An unresolved resource may compute.
    if (resource.contract == nullptr) return true;
    return resource.contract->computes &&
           std::any_of(resource.users.begin(), resource.users.end(), [&](int32_t user) {
             return draft.nodes[static_cast<size_t>(user)].place == place;
           });
  });
}

/// The resource that the node uses under this name; -1 = not resolved.
int32_t used_resource(const DraftNode& node, std::string_view use) {
  for (size_t i = 0; i < node.contract->resources.size(); ++i)
    if (node.contract->resources[i].name == use) return node.uses[i];
  return -1;
}

/// The position at which the file assigns the node to its place.
Span placed_span(const Draft& draft, const DraftNode& node) {
  for (const Value* value : listed_nodes(*draft.places[static_cast<size_t>(node.place)].spec))
    if (value->as_string() == node.spec->name) return value->span;
  return node.spec->name_span;
}

std::string line_of(const Draft& draft, Span span) {
  if (draft.sources.is_built_in(span)) return draft.file.built_in;
  return fmt::format("line {}", span.begin.line);
}

/// Checks an edge whose messages carry handles: both ends must use one engine in one process.
void check_handles_of(Draft& draft, const DraftEdge& edge) {
  const DraftNode& from = draft.nodes[static_cast<size_t>(edge.from)];
  const DraftNode& to = draft.nodes[static_cast<size_t>(edge.to)];
  const auto& output = from.contract->outputs[static_cast<size_t>(edge.output)];
  const auto& input = to.contract->inputs[static_cast<size_t>(edge.input)];
  if (output.handles_of.empty() || input.handles_of.empty()) return;
  const int32_t there = used_resource(from, output.handles_of);
  const int32_t here = used_resource(to, input.handles_of);
  if (there < 0 || here < 0) return;
  const auto& theirs = draft.resources[static_cast<size_t>(there)];
  const auto& ours = draft.resources[static_cast<size_t>(here)];
  const std::string why =
      fmt::format("'{}.{}' sends handles into its {}; another one cannot resolve them",
                  from.spec->name, output.name, theirs.common.kind);
  const auto used_span = [](const DraftNode& node, const std::string& use) {
    const Entry* entry = node.spec->table->find(use);
    return entry != nullptr ? entry->value.span : node.spec->name_span;
  };
  if (there != here) {
    draft.diagnostics
        .error("G072",
               written_span(draft,
                            {used_span(to, input.handles_of), used_span(from, output.handles_of)}),
               "'{}' uses {} '{}', but '{}', which sends to it, uses '{}' ({})", to.spec->name,
               ours.common.kind, ours.spec->name, from.spec->name, theirs.spec->name,
               line_of(draft, used_span(from, output.handles_of)))
        .note(why)
        .suggest(fmt::format("write {} = \"{}\" in [node.{}]", input.handles_of, theirs.spec->name,
                             to.spec->name));
    return;
  }
  if (draft.places.empty() || from.place < 0 || to.place < 0 || from.place == to.place) return;
  const auto& their_place = draft.places[static_cast<size_t>(from.place)];
  draft.diagnostics
      .error("G072", placed_span(draft, to),
             "'{}' is in place '{}', but '{}', which sends to it, is in '{}' ({})", to.spec->name,
             draft.places[static_cast<size_t>(to.place)].spec->name, from.spec->name,
             their_place.spec->name, line_of(draft, placed_span(draft, from)))
      .note(why)
      .note(
          fmt::format("every place has its own copy of {} '{}'", ours.common.kind, ours.spec->name))
      .suggest("put both into the nodes of one place; its 'replicas' give several");
}

/// Replicas share one resource of the graph and its options, which are either for the CPU or for
/// CUDA devices.
void check_device_list(Draft& draft, const DraftPlace& place, std::vector<std::string> devices) {
  const auto num_cpu = std::ranges::count(devices, "cpu");
  if (num_cpu > 0 && num_cpu < std::ssize(devices))
    draft.diagnostics
        .error("G058", key_span(place, "devices"),
               "'devices' of place '{}' mixes the CPU and CUDA devices", place.spec->name)
        .note(
            "replicas have the same engine with the same options, and a CUDA device needs other "
            "options than the CPU")
        .suggest(
            "put the nodes that run on the CPU into a place of their own, with an engine of their "
            "own");
  std::ranges::sort(devices);
  const auto twice = std::ranges::adjacent_find(devices);
  if (twice == devices.end() || *twice == "cpu") return;
  draft.diagnostics
      .error("G058", key_span(place, "devices"), "'devices' of place '{}' names '{}' twice",
             place.spec->name, *twice)
      .suggest(fmt::format("name a device for each replica, or write device = \"{}\" for all: they "
                           "then share its memory",
                           *twice));
}

}  // namespace

void check_handles(Draft& draft) {
  for (const auto& edge : draft.edges)
    if (edge.is_whole() && !edge.is_mismatch && !edge.is_repeated) check_handles_of(draft, edge);
}

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
        const std::string missing = fmt::format("node '{}'", value->as_string());
        if (is_reported(draft, missing, value->span)) continue;
        std::vector<std::string> known;
        for (const auto& node : draft.nodes) known.push_back(node.spec->name);
        auto& fault = draft.diagnostics.error("G011", value->span, "there is no {}", missing);
        remember_report(draft, missing, fault);
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
  const Span first =
      draft.spec.place.empty() ? draft.spec.places->span : draft.spec.place.front().name_span;
  for (const auto& node : draft.nodes)
    if (node.place < 0)
      draft.diagnostics
          .error("G051", written_span(draft, {node.spec->name_span, first}),
                 "node '{}' has no place", node.spec->name)
          .note(fmt::format("places: {}", names.empty() ? "none" : join_names(names)))
          .suggest(
              "add it to the nodes of a place, or remove [place]: then all nodes run in one "
              "process");
}

void check_devices(Draft& draft) {
  for (size_t index = 0; index < draft.places.size(); ++index) {
    const auto& place = draft.places[index];
    std::vector<std::string> devices = place.options.devices;
    const std::string_view key = devices.empty() ? "device" : "devices";
    if (devices.empty() && !place.options.device.empty()) devices = {place.options.device};
    if (devices.empty()) continue;
    const auto unknown = std::find_if_not(devices.begin(), devices.end(), is_device_name);
    if (unknown != devices.end()) {
      auto& fault =
          draft.diagnostics.error("G052", key_span(place, key), "'{}' is not a device", *unknown)
              .note("devices: cpu, cuda:0, cuda:1, ...");
      if (const std::string meant = meant_device(*unknown); !meant.empty())
        fault.suggest(fmt::format("did you mean \"{}\"?", meant));
      continue;
    }
    check_device_list(draft, place, place.options.devices);
    if (has_compute(draft, static_cast<int32_t>(index))) continue;
    draft.diagnostics
        .error("G053", key_span(place, key),
               "place '{}' has a device, but none of its nodes computes", place.spec->name)
        .note("a device is for the engine or learner that a node of the place uses")
        .suggest(fmt::format("remove '{}'", key));
  }
}

void check_place_sizes(Draft& draft) {
  for (auto& place : draft.places) {
    const auto& options = place.options;
    if (!options.devices.empty() && !options.device.empty())
      draft.diagnostics
          .error("G057", key_span(place, "devices"), "place '{}' has both 'device' and 'devices'",
                 place.spec->name)
          .suggest("keep one: 'device' for all replicas, 'devices' for one each");
    else if (!options.devices.empty() &&
             std::cmp_not_equal(options.devices.size(), options.replicas))
      draft.diagnostics
          .error("G057", key_span(place, "devices"),
                 "place '{}' has {} replicas, but 'devices' names {}", place.spec->name,
                 options.replicas, options.devices.size())
          .suggest("name one device for each replica");
    if (!is_host(options.host))
      draft.diagnostics.error("G057", key_span(place, "host"), "'{}' is not the name of a machine",
                              options.host);
    check_cpus(draft, place);
    for (const auto& variable : options.variables)
      if (!is_variable(variable))
        draft.diagnostics
            .error("G057", key_span(place, "variables"),
                   "'{}' does not set an environment variable", variable)
            .note("each is \"NAME=value\"");
  }
}

void check_transports(Draft& draft) {
  std::map<std::pair<int32_t, int32_t>, const DraftEdge*> first;  // by pair of places
  for (const auto& edge : draft.edges) {
    if (!edge.is_whole()) continue;
    const int32_t from = draft.nodes[static_cast<size_t>(edge.from)].place;
    const int32_t to = draft.nodes[static_cast<size_t>(edge.to)].place;
    if (from < 0 || to < 0) continue;
    const auto transport = transport_of(draft, edge);
    const std::string& asked = edge.spec->transport;
    if (asked != "auto" && asked != to_string(transport)) {
      auto& fault = draft.diagnostics.error("G056", edge.spec->transport_span,
                                            "messages of '{}' cannot use transport {}",
                                            edge.spec->path->as_string(), asked);
      if (transport == EdgeTransport::kMemory)
        fault.note("both of its nodes are in one process, which uses transport memory");
      else
        fault.note(fmt::format("places '{}' and '{}' are processes of {}",
                               draft.places[static_cast<size_t>(from)].spec->name,
                               draft.places[static_cast<size_t>(to)].spec->name,
                               transport == EdgeTransport::kTcp ? "two machines" : "one machine"));
      fault.suggest("leave 'transport' out: the right one follows from the places");
      continue;
    }
    if (transport == EdgeTransport::kMemory) continue;
    const auto [other, is_first] = first.emplace(std::minmax(from, to), &edge);
    if (is_first || transport_of(draft, *other->second) == transport) continue;
    draft.diagnostics
        .error("G056", edge.spec->path->span, "'{}' uses transport {}, but '{}' uses {}",
               edge.spec->path->as_string(), to_string(transport),
               other->second->spec->path->as_string(),
               to_string(transport_of(draft, *other->second)))
        .note("two processes share one connection, which keeps the order of their messages")
        .suggest("write the same 'transport' for all edges between the two places");
  }
}

}  // namespace primerl
