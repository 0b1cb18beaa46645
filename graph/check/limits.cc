// [graph.tenant_limits]: its binding, and the rule that each tenant stays within it.
#include <algorithm>
#include <filesystem>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// A key that a tenant and the limits share; the limit is the largest value.
struct LimitedNumber {
  std::string_view key;
  int64_t Tenant::*value;
  int64_t TenantLimits::*limit;
};
constexpr LimitedNumber kLimitedNumbers[] = {
    {"seq_len", &Tenant::seq_len, &TenantLimits::seq_len},
    {"group_size", &Tenant::group_size, &TenantLimits::group_size},
    {"batch_size", &Tenant::batch_size, &TenantLimits::batch_size},
    {"inflight", &Tenant::inflight, &TenantLimits::inflight},
    {"max_off_policy_steps", &Tenant::max_off_policy_steps, &TenantLimits::max_off_policy_steps},
    {"turns_max", &Tenant::turns_max, &TenantLimits::turns_max},
    {"snapshots", &Tenant::snapshots, &TenantLimits::snapshots},
};

constexpr std::string_view kAllLinear = "all-linear", kHead = "lm_head";

bool contains(const std::vector<std::string>& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

/// The position of a limit as a note: "'rank' of [graph.tenant_limits] is 16, at graph.toml:7:8".
std::string limit_note(const Draft& draft, std::string_view key, std::string_view value) {
  const Span span = value_span(*draft.any_tenant->spec, key);
  return fmt::format("'{}' of [graph.tenant_limits] is {}, at {}:{}:{}", key, value,
                     draft.sources.get(span.source).name, span.begin.line, span.begin.column);
}

/// Names in `key` of the limits that the program does not have.
void check_allowed(Draft& draft, const NamedTable& limits, std::string_view key,
                   std::string_view what, const std::vector<std::string>& known) {
  const Entry* entry = limits.table->find(key);
  if (entry == nullptr || !entry->value.is_array() || known.empty()) return;
  for (const Value& item : entry->value.as_array()) {
    if (!item.is_string() || contains(known, item.as_string())) continue;
    auto& found =
        draft.diagnostics.error("G015", item.span, "there is no {} '{}'", what, item.as_string());
    found.note(fmt::format("{}s: {}", what, join_names(known)));
    suggest_name(found, item.as_string(), known);
  }
}

std::vector<std::string> contract_names(const auto& contracts) {
  std::vector<std::string> names;
  for (const auto& contract : contracts) names.push_back(contract.name);
  return names;
}

Tenant largest_tenant(const TenantLimits& limits, std::string name) {
  Tenant tenant;
  tenant.name = std::move(name);
  for (const auto& number : kLimitedNumbers) tenant.*number.value = limits.*number.limit;
  tenant.tokens_per_second = limits.tokens_per_second;
  if (!limits.clients) tenant.snapshots = 0;
  tenant.adapter.rank = limits.rank;
  tenant.adapter.targets = limits.targets;
  return tenant;
}

/// Reports that a tenant is beyond one of the limits.
class LimitRule {
 public:
  LimitRule(Draft& draft, const DraftTenant& drafted)
      : draft_(draft),
        drafted_(drafted),
        tenant_(drafted.tenant),
        limits_(draft.settings.tenant_limits) {}

  void check() {
    check_client();
    for (const auto& number : kLimitedNumbers) check_number(number);
    check_adapter();
    check_optimizer();
    for_each_environment(drafted_, [this](const DraftTenant& each) {
      // Names that the program does not have are reported where they are bound.
      const auto& environment = each.tenant.environment;
      // A service is allowed: the operator defined it.
      if (environment.contract != nullptr && environment.service.empty())
        check_choice(each, "environment", {environment.name}, "environments", limits_.environments);
      std::vector<std::string> rewards;
      for (const auto& reward : each.tenant.rewards)
        if (reward.contract != nullptr && reward.service.empty()) rewards.push_back(reward.name);
      check_choice(each, "reward", rewards, "rewards", limits_.rewards);
      check_files(each);
    });
    check_path(tenant_.adapter.path, nested_span(*drafted_.spec, "adapter.path"), "adapter.path");
  }

 private:
  Diagnostic& refuse(Span span, const std::string& text) {
    return draft_.diagnostics.error("G096", span, "{}", text);
  }

  void check_client() {
    if (!tenant_.is_client || limits_.clients) return;
    refuse(value_span(*drafted_.spec, "client"),
           fmt::format("tenant '{}' has client = true, and the graph allows no clients",
                       drafted_.spec->name))
        .note("'clients' of [graph.tenant_limits] is false")
        .suggest("write clients = true in [graph.tenant_limits], and start the graph with it");
  }

  void check_number(const LimitedNumber& number) {
    const int64_t value = tenant_.*number.value, limit = limits_.*number.limit;
    if (value <= limit) return;
    if (number.value == &Tenant::snapshots && !limits_.clients) return;  // see check_client()
    refuse(value_span(*drafted_.spec, number.key),
           fmt::format("'{}' {} of tenant '{}' is more than the graph allows, {}", number.key,
                       value, drafted_.spec->name, limit))
        .note(limit_note(draft_, number.key, std::to_string(limit)))
        .suggest(fmt::format("write {} = {} or less", number.key, limit));
  }

  void check_adapter() {
    const NamedTable& spec = *drafted_.spec;
    const TenantAdapter& adapter = tenant_.adapter;
    if (!adapter.is_there()) {
      refuse(nested_span(spec, "adapter.rank"),
             fmt::format("tenant '{}' has no adapter, so it would train the weights that all "
                         "tenants share",
                         spec.name))
          .note(limit_note(draft_, "rank", std::to_string(limits_.rank)))
          .suggest(fmt::format("add [tenant.{}.adapter] with a rank of at most {}", spec.name,
                               limits_.rank));
      return;
    }
    if (adapter.rank > limits_.rank)
      refuse(nested_span(spec, "adapter.rank"),
             fmt::format("the adapter of tenant '{}' has rank {}, more than the graph allows, {}",
                         spec.name, adapter.rank, limits_.rank))
          .note(limit_note(draft_, "rank", std::to_string(limits_.rank)))
          .suggest(fmt::format("write rank = {} or less", limits_.rank));
    // "all-linear" leaves out the head.
    const bool are_all = contains(limits_.targets, kAllLinear);
    for (const auto& target : adapter.targets)
      if (!contains(limits_.targets, target) && (!are_all || target == kHead)) {
        refuse(nested_span(spec, "adapter.targets"),
               fmt::format("the adapter of tenant '{}' is on '{}', which the graph does not allow",
                           spec.name, target))
            .note(limit_note(draft_, "targets", join_names(limits_.targets)))
            .suggest(fmt::format("write targets from {}", join_names(limits_.targets)));
        return;
      }
  }

  void check_optimizer() {
    const std::string& kind = tenant_.optimizer.kind;
    if (kind.empty() || contains(limits_.optimizers, kind)) return;
    const std::string allowed = limits_.optimizers.empty() ? std::string("the learner's alone")
                                                           : join_names(limits_.optimizers);
    refuse(nested_span(*drafted_.spec, "optimizer.kind"),
           fmt::format("the optimizer '{}' of tenant '{}' is not allowed by the graph", kind,
                       drafted_.spec->name))
        .note(limit_note(draft_, "optimizers", allowed))
        .suggest("leave 'kind' out: then it is the learner's");
  }

  void check_choice(const DraftTenant& each, std::string_view key,
                    const std::vector<std::string>& names, std::string_view limit,
                    const std::vector<std::string>& allowed) {
    if (allowed.empty()) return;
    for (const auto& name : names)
      if (!name.empty() && !contains(allowed, name))
        refuse(value_span(*each.spec, key),
               fmt::format("the {} '{}' of tenant '{}' is not allowed by the graph", key, name,
                           drafted_.spec->name))
            .note(limit_note(draft_, limit, join_names(allowed)))
            .suggest("write one that is allowed");
  }

  /// Files and folders that the environment and the rewards name. Those of a service are the
  /// operator's.
  void check_files(const DraftTenant& each) {
    const TenantEnvironment& environment = each.tenant.environment;
    if (environment.contract != nullptr && environment.service.empty())
      check_options(environment.contract->options, environment.options,
                    value_span(*each.spec, "environment"));
    for (const auto& reward : each.tenant.rewards)
      if (reward.contract != nullptr && reward.service.empty())
        check_options(reward.contract->options, reward.options, value_span(*each.spec, "reward"));
  }

  void check_options(const OptionSet& options, const std::shared_ptr<const void>& bound,
                     Span span) {
    if (bound == nullptr) return;
    for (const auto& field : options.fields) {
      const std::string& kind = field.constraint.refers.kind;
      if (kind != "file" && kind != "folder") continue;
      void* const values = const_cast<void*>(bound.get());  // its accessors want one
      if (field.reference) check_path(*field.reference(values), span, field.name);
      if (field.references)
        for (const auto& path : *field.references(values)) check_path(path, span, field.name);
    }
  }

  /// `path` is absolute. Its links are followed, because they could lead anywhere.
  void check_path(const std::string& path, Span span, std::string_view key) {
    if (path.empty() || limits_.data_root.empty()) return;
    std::error_code fault;
    const fs::path real = fs::weakly_canonical(path, fault);
    const auto is_in = [&](const std::string& folder) {
      const fs::path root = fs::weakly_canonical(folder, fault);
      return std::mismatch(root.begin(), root.end(), real.begin(), real.end()).first == root.end();
    };
    if (!fault && is_in(limits_.data_root) && !fault) return;
    if (!draft_.uploaded_data.empty() && is_in(draft_.uploaded_data) && !fault) return;
    refuse(span, fmt::format("'{}' of tenant '{}' is outside the folder that the graph allows", key,
                             drafted_.spec->name))
        .note(fmt::format("it is '{}'", real.string()))
        .note(limit_note(draft_, "data_root", fmt::format("'{}'", limits_.data_root)))
        .suggest("copy it into that folder, and write its path there");
  }

  Draft& draft_;
  const DraftTenant& drafted_;
  const Tenant& tenant_;
  const TenantLimits& limits_;
};

}  // namespace

void bind_limits(Draft& draft) {
  Entry* entry = draft.spec.graph != nullptr ? draft.spec.graph->find("tenant_limits") : nullptr;
  if (entry == nullptr) return;
  if (!entry->value.is_table()) {
    draft.diagnostics
        .error("G021", entry->value.span, "'tenant_limits' of [graph] must be a table, not {}",
               entry->value.kind())
        .suggest("write [graph.tenant_limits] with tenants_max and rank");
    return;
  }
  const std::string what = "[graph.tenant_limits]";
  Table& table = entry->value.as_table();
  TenantLimits& limits = draft.settings.tenant_limits;
  tenant_limits_options().bind(table, what, {}, &limits, draft.diagnostics);
  resolve_files(tenant_limits_options(), table, &limits, what, draft);
  // After a faulty number the graph is checked as one with a slot and the smallest adapter.
  limits.tenants_max = std::max<int64_t>(limits.tenants_max, 1);
  limits.rank = std::max<int64_t>(limits.rank, 1);
  DraftTenant& any = draft.any_tenant.emplace();
  any.item =
      std::make_shared<const NamedTable>(NamedTable{"tenant_limits", entry->key_span, &table});
  any.spec = any.item.get();
  any.seq_len_is_written = table.find("seq_len") != nullptr;
  any.tenant = largest_tenant(limits, any.spec->name);
  check_allowed(draft, *any.spec, "environments", "environment",
                contract_names(draft.catalog.environments));
  check_allowed(draft, *any.spec, "rewards", "reward", contract_names(draft.catalog.rewards));
  if (draft.settings.tenants_max > 0)
    draft.diagnostics
        .error("G085", draft.spec.graph->find("tenants_max")->value.span,
               "'tenants_max' of [graph] and of [graph.tenant_limits] are both written")
        .suggest("remove the one of [graph]");
}

void apply_limits(const NamedTable& spec, Tenant& tenant, const Draft& draft) {
  if (!draft.any_tenant) return;
  const TenantLimits& limits = draft.settings.tenant_limits;
  tenant.tokens_per_second = limits.tokens_per_second;
  for (const auto& number : kLimitedNumbers) {
    if (spec.table->find(number.key) != nullptr) continue;
    int64_t& value = tenant.*number.value;
    const int64_t limit = limits.*number.limit;
    // Without a number of its own a tenant may have all rollouts of the node in flight, and a
    // client all snapshots.
    const bool has_no_default =
        number.value == &Tenant::inflight || number.value == &Tenant::snapshots;
    value = has_no_default ? limit : std::min(value, limit);
  }
  // A client may have the slot of a loop later, so a loop's slot has space for snapshots too.
  if (!limits.clients) tenant.snapshots = 0;
}

void check_limited_optimizers(Draft& draft) {
  if (!draft.any_tenant) return;
  const NamedTable& limits = *draft.any_tenant->spec;
  const Entry* const entry = limits.table->find("optimizers");
  if (entry == nullptr || !entry->value.is_array()) return;
  for (const auto& resource : draft.resources) {
    const auto* const contract = resource.contract;
    if (contract == nullptr || !contract->check_tenant) continue;
    if (contract->validate && !contract->validate(resource.options.get()).ok()) continue;
    for (const Value& item : entry->value.as_array()) {
      if (!item.is_string()) continue;
      Tenant tenant = draft.any_tenant->tenant;
      tenant.optimizer.kind = item.as_string();
      const Status valid = contract->check_tenant(resource.options.get(), tenant);
      if (valid.ok()) continue;
      auto& found =
          draft.diagnostics.error("G085", item.span, "no tenant can have optimizer '{}': {}",
                                  item.as_string(), valid.error().message());
      for (const auto& note : valid.error().notes()) found.note(note);
    }
  }
}

void check_tenant_limits(Draft& draft) {
  if (!draft.any_tenant) return;
  for (const auto& node : draft.nodes) {
    if (node.contract == nullptr) continue;
    for (const auto& demand : node.contract->demands) {
      if (demand.key != "adapter.targets") continue;
      const std::string fault = demand.fault(node.options.get(), draft.any_tenant->tenant);
      if (fault.empty()) continue;
      draft.diagnostics
          .error("G085", value_span(*draft.any_tenant->spec, "targets"),
                 "'targets' of [graph.tenant_limits] {}", fault)
          .suggest(demand.help);
    }
  }
  for (const auto& tenant : draft.tenants) LimitRule(draft, tenant).check();
}

}  // namespace primerl
