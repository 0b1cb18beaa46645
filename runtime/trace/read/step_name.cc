// Names of steps, and payloads decoded by their schema.
#include <algorithm>
#include <charconv>

#include "graph/base/suggest.h"
#include "runtime/trace/read/trace.h"
#include "runtime/trace/schema.h"

namespace primerl {
namespace {

/// "a, b and c"; shortened when there are many.
std::string some_names(std::vector<std::string> names) {
  constexpr size_t kShown = 12;
  if (names.size() <= kShown) return join_names(names);
  const size_t rest = names.size() - kShown;
  names.resize(kShown);
  return fmt::format("{} and {} more", fmt::join(names, ", "), rest);
}

}  // namespace

Result<StepName> parse_step_name(const TraceCatalog& catalog, std::string_view text) {
  StepName found;
  std::string_view name = text;
  if (const auto colon = text.rfind(':'); colon != std::string_view::npos) {
    name = text.substr(0, colon);
    const std::string_view digits = text.substr(colon + 1);
    uint64_t step = 0;
    const auto [end, fault] = std::from_chars(digits.begin(), digits.end(), step);
    if (fault != std::errc() || end != digits.end() || step == 0)
      return error(Code::kInvalid, "'{}' is no step: '{}' is not a whole number from 1", text,
                   digits)
          .note("write it as in trainer:412");
    found.step = step;
  }
  for (uint32_t i = 0; i < catalog.instances.size(); ++i)
    if (catalog.instances[i].name == name) {
      found.instance = InstanceId(i);
      found.group = GroupId(catalog.instances[i].group);
      return found;
    }
  for (uint32_t h = 0; h < catalog.groups.size(); ++h)
    if (catalog.groups[h].name == name) {
      found.group = GroupId(h);
      return found;
    }
  std::vector<std::string> names, of_node;
  for (uint32_t i = 0; i < catalog.instances.size(); ++i) {
    const auto& instance = catalog.instances[i];
    names.push_back(instance.name);
    if (instance.node != name) continue;
    of_node.push_back(instance.name);
    found.instance = InstanceId(i);
    found.group = GroupId(instance.group);
  }
  if (of_node.size() == 1) return found;
  if (of_node.size() > 1)
    return error(Code::kInvalid, "'{}' has several instances", name)
        .note(fmt::format("name one of {}", some_names(of_node)));
  for (const auto& group : catalog.groups)
    if (std::ranges::find(names, group.name) == names.end()) names.push_back(group.name);
  const std::string near = nearest_name(name, names);
  return error(Code::kNotFound, "no node '{}' in this trace", name)
      .note(near.empty() ? fmt::format("it has {}", some_names(names))
                         : fmt::format("did you mean '{}'?", near));
}

std::string step_text(const TraceCatalog& catalog, GroupId group, uint64_t step) {
  if (group.index() >= catalog.groups.size()) return fmt::format("?:{}", step);
  return fmt::format("{}:{}", catalog.groups[group.index()].name, step);
}

Result<Json> payload_json(const TraceCatalog::Type& type, const StoredPayload& payload) {
  auto schema = read_schema(type.schema);
  auto json =
      schema.ok() ? body_json(*schema, payload.body, payload.blobs) : Result<Json>(schema.error());
  if (!json.ok()) return Error(json.error()).while_doing(fmt::format("reading a '{}'", type.name));
  return json;
}

Status check_payload(const TraceCatalog::Type& type, const StoredPayload& payload) {
  ASSIGN_OR_RETURN(const FieldSchema schema, read_schema(type.schema));
  ASSIGN_OR_RETURN(const uint64_t check,
                   body_check(schema, type.schema_hash, payload.body, payload.blobs));
  if (check == payload.payload_check) return ok();
  return error(Code::kCorrupt, "a '{}' has the check {:016x}, its content {:016x}", type.name,
               payload.payload_check, check);
}

}  // namespace primerl
