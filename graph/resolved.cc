// The canonical text of a plan: every value written out, absolute paths, no includes, in an order
// that does not depend on the input's order. Reading it again gives the same plan and the same
// hash.
#include <algorithm>

#include "graph/base/random.h"
#include "graph/check/rules.h"
#include "graph/resolve.h"

namespace primerl {
namespace {

class Writer {
 public:
  explicit Writer(const Draft& draft) : draft_(draft) {}

  void header(const std::string& path) {
    if (!text_.empty()) text_ += "\n";
    text_ += "[" + path + "]\n";
    path_ = path;
  }
  void line(const std::string& key, const std::string& value, const Table* written) {
    text_ += fmt::format("{} = {}\n", key, value);
    const Entry* entry = written != nullptr ? written->find(key) : nullptr;
    add(path_ + "." + key, value, entry);
  }
  /// Writes every option of a bound struct; nested tables inline. Keys in `skip` are written
  /// elsewhere.
  void options(const OptionSet& set, const void* bound, const Table* written,
               const std::vector<std::string>& skip = {}) {
    for (const auto& field : set.fields) {
      if (std::find(skip.begin(), skip.end(), field.name) != skip.end()) continue;
      if (field.type != OptionType::kTable) {
        line(field.name, field.print(bound), written);
        continue;
      }
      const Entry* entry = written != nullptr ? written->find(field.name) : nullptr;
      const Table* nested =
          entry != nullptr && entry->value.is_table() ? &entry->value.as_table() : nullptr;
      text_ += fmt::format("{} = {}\n", field.name,
                           inline_table(*field.table, field.nested(const_cast<void*>(bound)),
                                        nested, path_ + "." + field.name, {}));
    }
  }
  /// Returns "{ a = 1, b = 2 }", and adds a resolved value for each key.
  std::string inline_table(const OptionSet& set, const void* bound, const Table* written,
                           const std::string& path, std::vector<std::string> first) {
    std::vector<std::string> parts = std::move(first);
    for (const auto& field : set.fields) {
      const Entry* entry = written != nullptr ? written->find(field.name) : nullptr;
      if (field.type == OptionType::kTable) {
        const Table* nested =
            entry != nullptr && entry->value.is_table() ? &entry->value.as_table() : nullptr;
        parts.push_back(
            fmt::format("{} = {}", field.name,
                        inline_table(*field.table, field.nested(const_cast<void*>(bound)), nested,
                                     path + "." + field.name, {})));
        continue;
      }
      const std::string value = field.print(bound);
      parts.push_back(fmt::format("{} = {}", field.name, value));
      add(path + "." + field.name, value, entry);
    }
    return parts.empty() ? "{}" : fmt::format("{{ {} }}", fmt::join(parts, ", "));
  }
  void raw(std::string_view text) { text_ += text; }
  void add(const std::string& path, const std::string& value, const Entry* entry) {
    values_.push_back({path, value, entry != nullptr ? origin(entry->value.span) : "default"});
  }
  std::string origin(const Span& span) const {
    if (span.is_none() || span.source >= draft_.sources.size()) return "default";
    const auto& source = draft_.sources.get(span.source);
    if (span.source >= draft_.file.first_set) return fmt::format("--set {}", source.text);
    return fmt::format("{}:{}:{}", source.name, span.begin.line, span.begin.column);
  }
  std::string take_text() { return std::move(text_); }
  std::vector<ResolvedValue> take_values() { return std::move(values_); }

 private:
  const Draft& draft_;
  std::string text_, path_;
  std::vector<ResolvedValue> values_;
};

template <class T>
const T& by_name(const std::vector<T>& items, const std::string& name) {
  for (const auto& item : items)
    if (item.spec->name == name) return item;
  CHECK(false, "a plan has a name that its draft does not have");
  return items.front();
}

/// For example "{ name = "copy", ... }".
std::string choice_text(Writer& writer, const OptionSet& common, const auto& chosen,
                        const Table& table, const std::string& path) {
  std::vector<std::string> parts;
  const bool is_service = !chosen.service.empty();
  if (is_service) {
    const std::string value = detail::toml_text(chosen.service);
    writer.add(path + ".service", value, table.find("service"));
    parts.push_back("service = " + value);
  }
  for (const auto& field : common.fields) {
    if (is_service && field.name == "name") continue;
    const std::string value = field.print(&chosen);
    writer.add(path + "." + field.name, value, table.find(field.name));
    parts.push_back(fmt::format("{} = {}", field.name, value));
  }
  if (is_service) return fmt::format("{{ {} }}", fmt::join(parts, ", "));
  return writer.inline_table(chosen.contract->options, chosen.options.get(), &table, path,
                             std::move(parts));
}

/// One reward is a table; several are a list of tables. `entry` is `reward` of the file.
std::string rewards_text(Writer& writer, const std::vector<TenantReward>& rewards,
                         const Entry& entry, const std::string& path) {
  if (entry.value.is_table())
    return choice_text(writer, reward_options(), rewards.front(), entry.value.as_table(), path);
  std::vector<std::string> texts;
  for (size_t i = 0; i < rewards.size(); ++i)
    texts.push_back(choice_text(writer, reward_options(), rewards[i],
                                entry.value.as_array()[i].as_table(),
                                fmt::format("{}[{}]", path, i)));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string environment_text(Writer& writer, const Tenant& tenant, const Table& written,
                             const std::string& path) {
  return choice_text(writer, environment_options(), tenant.environment,
                     written.find("environment")->value.as_table(), path + ".environment");
}

/// `environments`: each item with all its keys, so that nothing of the tenant's own counts for it.
void write_mix(Writer& writer, const DraftTenant& from, const Tenant& tenant) {
  std::vector<std::string> items;
  for (size_t i = 0; i < tenant.mix.size(); ++i) {
    const Tenant& part = *tenant.mix[i];
    const Table& written = *from.mix[i].spec->table;
    const std::string path = fmt::format("tenant.{}.environments[{}]", tenant.name, i);
    std::vector<std::string> first = {"environment = " +
                                      environment_text(writer, part, written, path)};
    const Entry* reward = written.find("reward");
    if (reward == nullptr) reward = from.spec->table->find("reward");
    if (reward != nullptr && !part.rewards.empty())
      first.push_back("reward = " + rewards_text(writer, part.rewards, *reward, path + ".reward"));
    items.push_back(writer.inline_table(mix_options(), &part, &written, path, std::move(first)));
  }
  writer.raw(fmt::format("environments = [{}]\n", fmt::join(items, ", ")));
}

void write_tenant(Writer& writer, const Draft& draft, const Tenant& tenant) {
  const auto& from = by_name(draft.tenants, tenant.name);
  const Table* written = from.spec->table;
  writer.header("tenant." + tenant.name);
  const std::string path = "tenant." + tenant.name;
  if (!tenant.mix.empty()) {
    write_mix(writer, from, tenant);
  } else {
    if (tenant.environment.contract != nullptr)
      writer.raw(
          fmt::format("environment = {}\n", environment_text(writer, tenant, *written, path)));
    if (const Entry* reward = written->find("reward"); reward != nullptr && !tenant.rewards.empty())
      writer.raw(fmt::format("reward = {}\n",
                             rewards_text(writer, tenant.rewards, *reward, path + ".reward")));
  }
  // Without the keys that a file with the other kind of tenant must not have.
  writer.options(
      tenant_options(), &tenant, written,
      tenant.is_client ? keys_of_loops() : std::vector<std::string>{"client", "snapshots"});
}

/// Services of the operator: tenants name them.
void write_services(Writer& writer, std::string_view kind, const OptionSet& common,
                    const auto& services) {
  for (const auto& service : services) {
    const Table* const written = service.spec->table;
    writer.header(fmt::format("service.{}.{}", kind, service.spec->name));
    writer.options(common, &service.chosen, written, {});
    writer.options(service.chosen.contract->options, service.chosen.options.get(), written, {});
  }
}

void write_resource(Writer& writer, const Draft& draft, const PlanResource& resource) {
  const auto& from = by_name(draft.resources, resource.name);
  const Table* written = from.spec->table;
  writer.header("resource." + resource.name);
  writer.line("kind", detail::toml_text(resource.kind), written);
  writer.line("backend", detail::toml_text(resource.backend), written);
  if (resource.model >= 0) writer.line("model", detail::toml_text(from.common.model), written);
  if (resource.contract->computes)
    writer.line("threads", std::to_string(resource.threads), written);
  writer.options(resource.contract->options, resource.options.get(), written, {"threads"});
}

void write_edges(Writer& writer, const Draft& draft, const PlanOrder& order, const Plan& plan) {
  writer.header("edges");
  for (const bool feedback : {false, true}) {
    writer.raw(feedback ? "feedback = [\n" : "forward = [\n");
    for (size_t i = 0; i < plan.edges.size(); ++i) {
      const auto& edge = plan.edges[i];
      if (edge.feedback != feedback) continue;
      const EdgeSpec& from = *draft.edges[static_cast<size_t>(order.edges[i])].spec;
      const Value* path = from.path;
      // `auto` is left out: the transport then follows from the places.
      const std::string transport =
          from.transport == "auto" ? "" : fmt::format(", transport = \"{}\"", from.transport);
      const std::string text =
          fmt::format("{{ path = {}, capacity = {}, bytes_max = {}, record = \"{}\"{} }}",
                      detail::toml_text(edge.name), edge.capacity,
                      detail::toml_size(edge.bytes_max), to_string(edge.record), transport);
      writer.raw(fmt::format("  {},\n", text));
      const Entry entry{"path", path->span, *path};
      writer.add(feedback ? "edges.feedback" : "edges.forward", text, &entry);
    }
    writer.raw("]\n");
  }
}

/// Values at their default are left out.
std::string place_text(const DraftPlace& place, const std::vector<std::string>& nodes) {
  const PlaceOptions defaults;
  std::vector<std::string> parts{"nodes = " + detail::toml_text(nodes)};
  for (const auto& field : place_options().fields) {
    const std::string value = field.print(&place.options);
    if (field.name != "nodes" && value != field.print(&defaults))
      parts.push_back(fmt::format("{} = {}", field.name, value));
  }
  return fmt::format("{{ {} }}", fmt::join(parts, ", "));
}

void write_places(Writer& writer, const Draft& draft, const PlanOrder& order, const Plan& plan) {
  if (draft.spec.places == nullptr) return;
  writer.header("place");
  for (const int32_t index : order.places) {
    const auto& from = draft.places[static_cast<size_t>(index)];
    std::vector<std::string> nodes;
    for (const auto& node : plan.nodes)
      if (node.process.value == order.first_process[static_cast<size_t>(index)])
        nodes.push_back(node.name);
    const std::string value = place_text(from, nodes);
    writer.raw(fmt::format("{} = {}\n", from.spec->name, value));
    const Entry entry{from.spec->name, from.spec->name_span, Value(true, from.spec->name_span)};
    writer.add("place." + from.spec->name, value, &entry);
  }
}

}  // namespace

std::vector<ResolvedValue> write_resolved(const Draft& draft, const PlanOrder& order, Plan& plan) {
  Writer writer(draft);
  writer.header("graph");
  writer.options(graph_options(), &plan.settings, draft.spec.graph);
  if (draft.any_tenant) {
    writer.header("graph.tenant_limits");
    writer.options(tenant_limits_options(), &plan.settings.tenant_limits,
                   draft.any_tenant->spec->table);
  }
  writer.header("trace");
  writer.options(trace_options(), &plan.trace, draft.spec.trace);
  write_services(writer, "environment", environment_options(), draft.environment_services);
  write_services(writer, "reward", reward_options(), draft.reward_services);
  for (const auto& tenant : plan.tenants) write_tenant(writer, draft, tenant);
  for (const auto& model : plan.models) {
    writer.header("model." + model.name);
    writer.line("path", detail::toml_text(model.path),
                by_name(draft.models, model.name).spec->table);
    if (!model.served_as.empty())
      writer.line("served_as", detail::toml_text(model.served_as),
                  by_name(draft.models, model.name).spec->table);
  }
  const PlanResource* last = nullptr;
  for (const auto& resource : plan.resources) {
    // Copies of one resource are adjacent; a tokenizer has no table.
    if (resource.contract != nullptr && (last == nullptr || last->name != resource.name))
      write_resource(writer, draft, resource);
    last = &resource;
  }
  for (size_t i = 0; i < plan.nodes.size(); ++i) {
    const auto& from = draft.nodes[static_cast<size_t>(order.nodes[i])];
    writer.header("node." + from.spec->name);
    writer.options(node_options(), &from.common, from.spec->table);
    writer.options(from.contract->options, from.options.get(), from.spec->table);
  }
  write_edges(writer, draft, order, plan);
  write_places(writer, draft, order, plan);
  plan.resolved_toml = writer.take_text();
  plan.graph_hash = stable_hash(plan.resolved_toml);
  return writer.take_values();
}

}  // namespace primerl
