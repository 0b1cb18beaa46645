#include "graph/config/schema.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "graph/base/suggest.h"
#include "graph/config/built_in_graphs.h"
#include "graph/config/tables.h"
#include "graph/config/toml_source.h"

namespace primerl {
namespace {

constexpr std::string_view kNamePattern = "^[a-z][a-z0-9_]{0,63}$";
constexpr std::string_view kDurationPattern = "^[0-9]*\\.?[0-9]+ *(ns|us|ms|s|m|h)$";
constexpr std::string_view kBytesPattern = "^[0-9]*\\.?[0-9]+ *([kKMGT]B|[KMGT]iB|B)$";

Json object_schema(const OptionSet& set);

Json json_number(double number) {
  if (number == std::floor(number) && std::abs(number) < 9e15) return static_cast<int64_t>(number);
  return number;
}

void add_limits(const Constraint& constraint, Json& schema) {
  // JSON numbers cannot state the limits of a 64-bit integer exactly.
  if (constraint.min && std::abs(*constraint.min) < 9e15) {
    // If 0 is valid below the minimum, `check` alone refuses the values between them.
    schema.set("minimum", json_number(constraint.zero_is_apart ? 0 : *constraint.min));
    if (constraint.min_excluded) schema.set("exclusiveMinimum", true);
  }
  if (constraint.max && std::abs(*constraint.max) < 9e15) {
    schema.set("maximum", json_number(*constraint.max));
    if (constraint.max_excluded) schema.set("exclusiveMaximum", true);
  }
}

/// The default as JSON; durations, sizes and strings without their TOML quotes.
Json default_value(const OptionField& field) {
  const std::string& text = field.default_text;
  switch (field.type) {
    case OptionType::kBool:
      return text == "true";
    case OptionType::kInteger:
      return static_cast<int64_t>(std::strtoll(text.c_str(), nullptr, 10));
    case OptionType::kNumber:
      return std::strtod(text.c_str(), nullptr);
    case OptionType::kString:
    case OptionType::kBytes:
    case OptionType::kDuration: {
      auto parsed = parse_json(text, "default");
      return parsed.ok() ? *parsed : Json(text);
    }
    default:
      return {};
  }
}

Json field_schema(const OptionField& field) {
  if (field.type == OptionType::kTable) {
    Json schema = object_schema(*field.table);
    schema.set("description", field.doc);
    return schema;
  }
  Json schema = Json::object();
  const auto& constraint = field.constraint;
  switch (field.type) {
    case OptionType::kBool:
      schema.set("type", "boolean");
      break;
    case OptionType::kInteger:
      schema.set("type", "integer");
      add_limits(constraint, schema);
      break;
    case OptionType::kNumber:
      schema.set("type", "number");
      add_limits(constraint, schema);
      break;
    case OptionType::kDuration:
      schema.set("type", "string").set("pattern", kDurationPattern);
      break;
    case OptionType::kBytes: {
      // Only `check` tests the limits of a size that is written with a unit.
      Json number = Json::object().set("type", "integer");
      add_limits(constraint, number);
      Json text = Json::object().set("type", "string").set("pattern", kBytesPattern);
      schema.set("anyOf", Json(Json::Array{std::move(number), std::move(text)}));
      break;
    }
    case OptionType::kTableList:
      schema.set("type", "array").set("items", object_schema(*field.table));
      schema.set("maxItems", static_cast<int64_t>(*constraint.max));
      break;
    case OptionType::kStringList:
    case OptionType::kIntegerList: {
      const bool is_text = field.type == OptionType::kStringList;
      schema.set("type", "array")
          .set("items", Json::object().set("type", is_text ? "string" : "integer"));
      if (constraint.min) schema.set("minItems", static_cast<int64_t>(*constraint.min));
      if (constraint.max) schema.set("maxItems", static_cast<int64_t>(*constraint.max));
      break;
    }
    default:
      schema.set("type", "string");
      if (!constraint.choices.empty()) schema.set("enum", Json::list(constraint.choices));
  }
  std::string description = field.doc;
  if (const auto range = constraint_text(constraint, field.type); !range.empty())
    description += fmt::format(" ({})", range);
  schema.set("description", description);
  if (!constraint.required && field.type != OptionType::kStringList &&
      field.type != OptionType::kIntegerList && field.type != OptionType::kTableList)
    schema.set("default", default_value(field));
  return schema;
}

void add_fields(const OptionSet& set, Json& properties, Json& required) {
  for (const auto& field : set.fields) {
    if (properties.find(field.name) != nullptr) continue;
    properties.set(field.name, field_schema(field));
    if (const std::string& other = field.constraint.other_name; !other.empty())
      properties.set(other, field_schema(field).set("description", "the same as " + field.name));
    if (field.constraint.required) required.push_back(field.name);
  }
}

Json closed_object(Json properties, Json required) {
  Json schema = Json::object();
  schema.set("type", "object")
      .set("properties", std::move(properties))
      .set("additionalProperties", false);
  // Draft 04 does not allow an empty `required`.
  if (!required.as_array().empty()) schema.set("required", std::move(required));
  return schema;
}

Json object_schema(const OptionSet& set) {
  Json properties = Json::object(), required = Json::array();
  add_fields(set, properties, required);
  return closed_object(std::move(properties), std::move(required));
}

/// A table `[node.<name>]` with any lower_snake name.
Json named(Json schema) {
  return Json::object()
      .set("type", "object")
      .set("patternProperties", Json::object().set(kNamePattern, std::move(schema)))
      .set("additionalProperties", false);
}

/// The tables [kind.x] of all built-in graphs; of two with one name, the first.
std::vector<std::pair<std::string, Table>> built_in_tables(std::string_view kind) {
  std::vector<std::pair<std::string, Table>> all;
  for (const auto& graph : built_in_graphs()) {
    Sources sources;
    Diagnostics unused;
    const auto root =
        parse_toml(sources, sources.add(std::string(graph.name), std::string(graph.text)), unused);
    CHECK(root.has_value(), "a built-in graph is not TOML");
    for (const Entry& entry : root->find(kind)->value.as_table().entries)
      if (std::ranges::find(all, entry.key, [](const auto& each) { return each.first; }) ==
          all.end())
        all.emplace_back(entry.key, entry.value.as_table());
  }
  return all;
}

Json definition(std::string_view name) {
  return Json::object().set("$ref", fmt::format("#/definitions/{}", name));
}

/// The same, with tables of built-in graphs: the file may leave out what those state. `variants_of`
/// gives the variants without required keys of a built-in table.
template <class VariantsOf>
Json named_or_built_in(std::string_view kind, const VariantsOf& variants_of) {
  std::vector<std::string> names;
  Json properties = Json::object();
  for (const auto& [name, table] : built_in_tables(kind)) {
    Json variants = variants_of(table);
    if (variants.as_array().empty()) continue;  // the catalog lacks its actor or kind
    variants.push_back(definition(kind));
    properties.set(name, Json::object().set("anyOf", std::move(variants)));
    names.push_back(name);
  }
  const std::string others =
      fmt::format("^(?!({})$){}", fmt::join(names, "|"), kNamePattern.substr(1));
  return Json::object()
      .set("type", "object")
      .set("properties", std::move(properties))
      .set("patternProperties", Json::object().set(others, definition(kind)))
      .set("additionalProperties", false);
}

/// A key that selects a variant, and its values in that variant.
using Choice = std::pair<std::string, std::vector<std::string>>;

/// One variant of a table, in which the keys that select it have these values. If the table is in a
/// built-in graph, no key is required.
Json variant(const OptionSet& common, const OptionSet& own, const std::vector<Choice>& chosen,
             std::string_view doc, bool is_built_in = false) {
  Json properties = Json::object(), required = Json::array();
  for (const auto& [key, values] : chosen)
    properties.set(key, Json::object().set("enum", Json::list(values)));
  add_fields(common, properties, required);
  add_fields(own, properties, required);
  for (const auto& field : common.fields)
    for (const auto& [key, values] : chosen)
      if (key == field.name && field.constraint.required) required.push_back(key);
  if (is_built_in) required = Json::array();
  Json schema = closed_object(std::move(properties), std::move(required));
  schema.set("description", doc);
  return schema;
}

/// With `only`, the variant of that actor, without required keys.
Json node_variants(const Catalog& catalog, std::string_view only = "") {
  Json variants = Json::array();
  for (const auto& actor : catalog.actors)
    if (only.empty() || actor.name == only)
      variants.push_back(variant(node_options(), actor.options, {{"actor", {actor.name}}},
                                 actor.doc, !only.empty()));
  return variants;
}

/// With `only`, the variants of that kind, without required keys.
Json resource_variants(const Catalog& catalog, std::string_view only = "") {
  Json variants = Json::array();
  for (const auto& resource : catalog.resources) {
    if (!only.empty() && resource.kind != only) continue;
    std::vector<std::string> backends{resource.backend};
    if (resource.kind == "weight_channel" && resource.backend == "memory" &&
        catalog.find_resource("weight_channel", "auto") == nullptr)
      backends.push_back("auto");
    variants.push_back(variant(resource_options(), resource.options,
                               {{"kind", {resource.kind}}, {"backend", backends}}, resource.doc,
                               !only.empty()));
  }
  return variants;
}

Json nodes_schema(const Catalog& catalog) {
  return named_or_built_in("node", [&](const Table& table) {
    return node_variants(catalog, table.find("actor")->value.as_string());
  });
}

Json resources_schema(const Catalog& catalog) {
  return named_or_built_in("resource", [&](const Table& table) {
    return resource_variants(catalog, table.find("kind")->value.as_string());
  });
}

/// A table that names one of `contracts` and has its options.
Json choice_schema(const OptionSet& name_option, const auto& contracts) {
  Json variants = Json::array();
  for (const auto& contract : contracts)
    variants.push_back(
        variant(name_option, contract.options, {{"name", {contract.name}}}, contract.doc));
  Json schema = Json::object();
  if (!variants.as_array().empty()) schema.set("oneOf", std::move(variants));
  return schema;
}

/// A tenant writes the choice itself, or a service that has it.
Json choice_or_service(const OptionSet& name_option, std::string_view kind) {
  Json properties = Json::object(), required = Json::array();
  properties.set("service", Json::object()
                                .set("type", "string")
                                .set("pattern", std::string(kNamePattern))
                                .set("description", fmt::format("a table [service.{}.<name>] of "
                                                                "the graph",
                                                                kind)));
  required.push_back("service");
  Json unused = Json::array();
  add_fields(name_option, properties, unused);
  Json own = Json::object();
  for (const auto& [key, value] : properties.as_object())
    if (key != "name") own.set(key, value);
  return Json::object().set(
      "anyOf",
      Json(Json::Array{definition(kind), closed_object(std::move(own), std::move(required))}));
}

/// A value of the schema `one`, or a list of such values.
Json one_or_list(const Json& one) {
  const Json list = Json::object()
                        .set("type", "array")
                        .set("items", one)
                        .set("minItems", 1)
                        .set("maxItems", static_cast<int64_t>(kTenantRewardsMax));
  return Json::object().set("anyOf", Json(Json::Array{one, list}));
}

/// Parts that several places refer to.
Json definitions(const Catalog& catalog) {
  // `backend` may be left out, so several variants of a resource can match at once.
  return Json::object()
      .set("node", Json::object().set("oneOf", node_variants(catalog)))
      .set("resource", Json::object().set("anyOf", resource_variants(catalog)))
      .set("environment", choice_schema(environment_options(), catalog.environments))
      .set("reward", choice_schema(reward_options(), catalog.rewards));
}

Json tenant_schema() {
  Json schema = object_schema(tenant_options());
  Json properties = *schema.find("properties");
  properties.set("environment", choice_or_service(environment_options(), "environment"))
      .set("reward", one_or_list(choice_or_service(reward_options(), "reward")));
  Json item = object_schema(mix_options());
  Json of_item = *item.find("properties");
  of_item.set("environment", *properties.find("environment"))
      .set("reward", *properties.find("reward"));
  item.set("properties", std::move(of_item));
  properties.set("environments",
                 Json::object()
                     .set("type", "array")
                     .set("items", std::move(item))
                     .set("minItems", 1)
                     .set("maxItems", static_cast<int64_t>(kTenantEnvironmentsMax)));
  schema.set("properties", std::move(properties));
  return schema;
}

/// `[graph]`, with its table of limits.
Json settings_schema() {
  Json schema = object_schema(graph_options());
  Json properties = *schema.find("properties");
  properties.set("tenant_limits", object_schema(tenant_limits_options())
                                      .set("description",
                                           "what a tenant may need at most; the graph then has "
                                           "tenants_max slots"));
  schema.set("properties", std::move(properties));
  return schema;
}

Json edges_schema() {
  const Json path = Json::object().set("type", "string").set("pattern", "^.+\\..+->.+\\..+$");
  Json list = Json::object();
  list.set("type", "array")
      .set("items",
           Json::object().set("oneOf", Json(Json::Array{path, object_schema(edge_options())})));
  Json properties = Json::object();
  properties.set("forward", list).set("feedback", list);
  return closed_object(std::move(properties), Json::array());
}

/// Moves tables of options that occur more than once into the definitions: those of an optimizer
/// are the same in several learners.
class SharedTables {
 public:
  explicit SharedTables(const Json& document) { count(document); }

  Json shared(const Json& document) {
    Json result = replaced(document);
    Json all = *result.find("definitions");
    for (const auto& [name, schema] : definitions_.as_object()) all.set(name, schema);
    return std::move(result.set("definitions", std::move(all)));
  }

 private:
  static bool is_table(const Json& schema) {
    return schema.is_object() && schema.find("properties") != nullptr;
  }

  void count(const Json& json) {
    if (json.is_array())
      for (const Json& item : json.as_array()) count(item);
    if (!json.is_object()) return;
    for (const auto& [key, value] : json.as_object()) {
      if (key == "properties")
        for (const auto& [name, schema] : value.as_object())
          if (is_table(schema)) ++counts_[schema.dump()];
      count(value);
    }
  }

  Json replaced(const Json& json) {
    if (json.is_array()) {
      Json list = Json::array();
      for (const Json& item : json.as_array()) list.push_back(replaced(item));
      return list;
    }
    if (!json.is_object()) return json;
    Json object = Json::object();
    for (const auto& [key, value] : json.as_object())
      object.set(key, key == "properties" ? replaced_properties(value) : replaced(value));
    return object;
  }

  Json replaced_properties(const Json& properties) {
    Json result = Json::object();
    for (const auto& [name, schema] : properties.as_object())
      result.set(name, is_table(schema) && counts_[schema.dump()] > 1 ? reference(name, schema)
                                                                      : replaced(schema));
    return result;
  }

  Json reference(const std::string& name, const Json& table) {
    std::string& known = names_[table.dump()];
    if (!known.empty()) return definition(known);
    known = fmt::format("{}_options", name);
    for (int number = 2; definitions_.find(known) != nullptr; ++number)
      known = fmt::format("{}_options_{}", name, number);
    const std::string chosen = known;
    definitions_.set(chosen, Json::object());  // reserves the name
    definitions_.set(chosen, replaced(table));
    return definition(chosen);
  }

  std::map<std::string, int> counts_;         // by the text of a table
  std::map<std::string, std::string> names_;  // of definitions, by the text of a table
  Json definitions_ = Json::object();
};

}  // namespace

Json graph_schema(const Catalog& catalog) {
  Json properties = Json::object();
  properties
      .set("include",
           Json::object()
               .set("type", "array")
               .set("items", Json::object().set("type", "string"))
               .set("description",
                    "files that are read before this one, by paths relative to it; also the "
                    "built-in graphs " +
                        join_names(built_in_names())))
      .set("graph", settings_schema())
      .set("trace", object_schema(trace_options()))
      .set("tenant", named(tenant_schema()))
      .set("service", closed_object(Json::object()
                                        .set("environment", named(definition("environment")))
                                        .set("reward", named(definition("reward"))),
                                    Json::array()))
      .set("model", named(object_schema(model_options())))
      .set("resource", resources_schema(catalog))
      .set("node", nodes_schema(catalog))
      .set("edges", edges_schema())
      .set("place", named(object_schema(place_options())));
  Json schema = closed_object(std::move(properties), Json::array());
  Json document = Json::object();
  document.set("$schema", "http://json-schema.org/draft-04/schema#")
      .set("title", "primerl-graph graph file");
  for (const auto& [key, value] : schema.as_object()) document.set(key, value);
  document.set("definitions", definitions(catalog));
  return SharedTables(document).shared(document);
}

}  // namespace primerl
