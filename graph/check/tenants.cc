// Rules about [tenant.*]: numbers that must fit together, and fit models and nodes.
#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

/// The value of an integer option of a node or a resource; empty if it has no such option.
template <class Drafted>
std::optional<int64_t> integer_option(const Drafted& drafted, std::string_view name) {
  const OptionField* field =
      drafted.contract != nullptr ? drafted.contract->options.find(name) : nullptr;
  if (field == nullptr || field->type != OptionType::kInteger) return std::nullopt;
  const std::string text = field->print(drafted.options.get());
  int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

/// `check` warns if a resumed run may have to repeat more training steps than this.
constexpr int64_t kRecomputeStepsMax = 1000;

/// The option of nodes that open rollouts; empty for other nodes.
std::optional<int64_t> max_inflight_of(const DraftNode& node) {
  return integer_option(node, "max_inflight");
}

/// The table `loss` of the first learner.
struct LearnerLoss {
  const DraftResource* learner = nullptr;  // null: there is none
  const OptionSet* table = nullptr;
  const void* options = nullptr;

  std::string kind() const {
    if (learner == nullptr) return {};
    // As TOML text: a name in quotes.
    const std::string text = table->find("kind")->print(options);
    return text.size() < 2 ? std::string() : text.substr(1, text.size() - 2);
  }
};

LearnerLoss loss_of_learner(const Draft& draft) {
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || resource.contract->kind != "learner") continue;
    const OptionField* loss = resource.contract->options.find("loss");
    if (loss == nullptr || loss->table == nullptr || loss->table->find("kind") == nullptr) continue;
    return {&resource, loss->table.get(), loss->nested(resource.options.get())};
  }
  return {};
}

/// The tenant with the numbers that it takes from the learner: those of the same objective that it
/// does not write. The tenant alone if the learner's own options are refused.
Tenant with_numbers_of(const LearnerLoss& of_learner, const Tenant& tenant) {
  Tenant all = tenant;
  const DraftResource* const learner = of_learner.learner;
  if (learner == nullptr || tenant.objective != of_learner.kind()) return all;
  if (learner->contract->validate && !learner->contract->validate(learner->options.get()).ok())
    return all;
  for (const OptionField& field : tenant_options().find("loss")->table->fields) {
    const OptionField* const number = of_learner.table->find(field.name);
    if (field.type != OptionType::kNumber || number == nullptr) continue;
    if (std::strtod(field.print(&all.loss).c_str(), nullptr) >= 0) continue;
    const double value = std::strtod(number->print(of_learner.options).c_str(), nullptr);
    field.assign(&all.loss, Value(value, Span()));
  }
  return all;
}

const OutputPort* sized_output(const Contract& contract) {
  for (const auto& output : contract.outputs)
    if (output.bytes_max) return &output;
  return nullptr;
}

/// The largest value of a tenant's field, below the present one, with which `bytes` is within the
/// limit; 0 if there is none. `bytes` must grow with the field.
template <class Bytes>
int64_t largest_fitting(Tenant tenant, int64_t Tenant::*field, const Bytes& bytes, int64_t limit) {
  int64_t fits = 0, too_large = tenant.*field;
  while (too_large - fits > 1) {
    const int64_t middle = fits + (too_large - fits) / 2;
    tenant.*field = middle;
    (bytes(tenant) <= limit ? fits : too_large) = middle;
  }
  return fits;
}

}  // namespace

void check_tenants_exist(Draft& draft) {
  const auto limit =
      draft.any_tenant ? draft.settings.tenant_limits.tenants_max : draft.settings.tenants_max;
  if (limit > 0 && static_cast<int64_t>(draft.tenants.size()) > limit)
    draft.diagnostics.error("G065",
                            draft.any_tenant ? value_span(*draft.any_tenant->spec, "tenants_max")
                                             : draft.spec.graph->find("tenants_max")->value.span,
                            "the graph has {} tenants, more than 'tenants_max' {}",
                            draft.tenants.size(), limit);
  const auto per_tenant = std::find_if(draft.nodes.begin(), draft.nodes.end(),
                                       [](const auto& node) { return node.common.per_tenant; });
  if (per_tenant == draft.nodes.end()) return;
  if (draft.tenants.empty() && !draft.any_tenant)
    draft.diagnostics
        .error("G060", per_tenant->spec->name_span,
               "node '{}' is per_tenant, but the graph has no tenant", per_tenant->spec->name)
        .suggest("add a table [tenant.main] with environment = { name = ... }");
  if (draft.catalog.environments.empty()) return;
  for (const auto& tenant : draft.tenants)
    if (!tenant.tenant.is_client && tenant.spec->table->find("environment") == nullptr &&
        tenant.spec->table->find("environments") == nullptr) {
      std::vector<std::string> known;
      for (const auto& environment : draft.catalog.environments) known.push_back(environment.name);
      draft.diagnostics
          .error("G066", tenant.spec->name_span, "tenant '{}' has no environment",
                 tenant.spec->name)
          .note(fmt::format("environments: {}", join_names(known)))
          .suggest(fmt::format("write environment = {{ name = \"{}\" }}", known.front()));
    }
}

void check_drain(Draft& draft) {
  const DraftTenant* longest = nullptr;
  for (const auto& tenant : draft.tenants)
    if (tenant.tenant.environment.contract != nullptr &&
        (longest == nullptr ||
         tenant.tenant.environment_timeout > longest->tenant.environment_timeout))
      longest = &tenant;
  if (longest == nullptr) return;
  const Duration limit = longest->tenant.environment_timeout;
  if (draft.settings.drain_max > limit) return;
  const Entry* written =
      draft.spec.graph != nullptr ? draft.spec.graph->find("drain_max") : nullptr;
  draft.diagnostics
      .warning("G068",
               written != nullptr ? written->value.span
                                  : value_span(*longest->spec, "environment_timeout"),
               "'drain_max' {} is not longer than 'environment_timeout' {} of tenant '{}'",
               to_string(draft.settings.drain_max), to_string(limit), longest->spec->name)
      .note("a call that hangs when the drain begins would take longer than the drain")
      .suggest(
          fmt::format("write drain_max = \"{}\" or more in [graph]", to_string(limit + limit)));
}

void check_batches(Draft& draft) {
  for (const auto& tenant : draft.tenants) {
    const int64_t group = tenant.tenant.group_size, batch = tenant.tenant.batch_size;
    if (batch % group == 0) continue;
    const bool batch_is_written = tenant.spec->table->find("batch_size") != nullptr;
    const int64_t nearest = std::max(group, batch / group * group);
    draft.diagnostics
        .error("G061", value_span(*tenant.spec, batch_is_written ? "batch_size" : "group_size"),
               "'batch_size' {} of tenant '{}' is not a multiple of 'group_size' {}", batch,
               tenant.spec->name, group)
        .note("a step trains whole groups: groups per step = batch_size / group_size")
        .suggest(fmt::format("write batch_size = {}", nearest));
  }
}

void count_inflight(Draft& draft) {
  int64_t sum = 0;
  for (const auto& node : draft.nodes) sum += max_inflight_of(node).value_or(0);
  int64_t num_nodes = 0;  // nodes that open rollouts
  for (const auto& node : draft.nodes) num_nodes += max_inflight_of(node) ? 1 : 0;
  for (DraftTenant* const each : draft.all_tenants()) {
    Tenant& tenant = each->tenant;
    tenant.inflight_max = tenant.inflight == 0 ? sum : std::min(sum, num_nodes * tenant.inflight);
    if (tenant.is_client) tenant.inflight_max = tenant.inflight;  // it has no such node
  }
}

/// A graph has one learner, so all tenants without a kind of their own have its objective.
void name_objectives(Draft& draft) {
  const std::string of_learner = loss_of_learner(draft).kind();
  for (DraftTenant* const named : draft.all_tenants()) {
    DraftTenant& each = *named;
    Tenant& tenant = each.tenant;
    if (!tenant.loss.kind.empty())
      tenant.objective = tenant.loss.kind;
    else if (!of_learner.empty())
      tenant.objective = of_learner;
    for (DraftTenant& part : each.mix) part.tenant.objective = tenant.objective;
  }
}

void share_out(Draft& draft) {
  constexpr double kSlack = 1e-9;  // ten times 0.1 is not exactly 1
  double given = 0;
  int64_t num_open = static_cast<int64_t>(draft.num_slots() - draft.tenants.size());
  const DraftTenant* last = nullptr;
  for (const auto& each : draft.tenants) {
    given += each.tenant.share;
    num_open += each.tenant.share == 0 ? 1 : 0;
    if (each.tenant.share > 0) last = &each;
  }
  const double rest = 1 - given;
  if (rest < (num_open > 0 ? kSlack : -kSlack) && last != nullptr)
    draft.diagnostics
        .error("G063", value_span(*last->spec, "share"), "the shares of the tenants are {:.6g}{}",
               given,
               num_open == 0 ? std::string(" together")
                             : fmt::format(", so nothing is left for {} without one", num_open))
        .note("all shares together are at most 1")
        .suggest(
            "write smaller shares, or leave all of them out: then all tenants get equal shares");
  for (DraftTenant* const each : draft.all_tenants())
    if (each->tenant.share == 0)
      each->tenant.share =
          std::max(rest, kSlack) / static_cast<double>(std::max<int64_t>(num_open, 1));
}

void check_inflight(Draft& draft) {
  const DraftTenant* largest = nullptr;
  for (const DraftTenant* const tenant : draft.all_tenants())
    if (largest == nullptr || tenant->tenant.group_size > largest->tenant.group_size)
      largest = tenant;
  if (largest == nullptr) return;
  for (const auto& node : draft.nodes) {
    const auto inflight = max_inflight_of(node);  // empty too if the actor is not known
    if (!inflight || sized_output(*node.contract) == nullptr ||
        *inflight >= largest->tenant.group_size)
      continue;
    draft.diagnostics
        .error("G062",
               written_span(draft, {value_span(*node.spec, "max_inflight"),
                                    value_span(*largest->spec, "group_size")}),
               "'max_inflight' {} of node '{}' is smaller than 'group_size' {} of tenant '{}'",
               *inflight, node.spec->name, largest->tenant.group_size, largest->spec->name)
        .note("a group starts only when all its rollouts fit")
        .suggest(write_help(draft, "node", *node.spec,
                            fmt::format("max_inflight = {}", largest->tenant.group_size)));
  }
  for (const DraftTenant* const each : draft.all_tenants()) {
    const DraftTenant& tenant = *each;
    const auto [inflight, group_size] = std::pair(tenant.tenant.inflight, tenant.tenant.group_size);
    if (inflight == 0 || inflight >= group_size) continue;
    draft.diagnostics
        .error("G062", value_span(*tenant.spec, "inflight"),
               "'inflight' {} of tenant '{}' is smaller than its 'group_size' {}", inflight,
               tenant.spec->name, group_size)
        .note("a group starts only when all its rollouts fit")
        .suggest(fmt::format("write inflight = {}", group_size));
  }
}

namespace {

/// Whether only frozen engines compute the model: no trajectory of a tenant goes there.
bool is_only_of_judges(const Draft& draft, const DraftModel& model) {
  bool has_frozen = false;
  for (const auto& resource : draft.resources) {
    if (resource.model < 0 || &draft.models[static_cast<size_t>(resource.model)] != &model)
      continue;
    if (!is_frozen(draft, resource)) return false;
    has_frozen = true;
  }
  return has_frozen;
}

void check_model_lengths(Draft& draft) {
  const DraftModel* shortest = nullptr;
  for (const auto& model : draft.models) {
    if (!model.is_named || !model.facts || model.facts->max_position_embeddings <= 0) continue;
    if (is_only_of_judges(draft, model)) continue;
    if (shortest == nullptr ||
        model.facts->max_position_embeddings < shortest->facts->max_position_embeddings)
      shortest = &model;
  }
  if (shortest == nullptr) return;
  const int64_t limit = shortest->facts->max_position_embeddings;
  for (DraftTenant* const each : draft.all_tenants()) {
    DraftTenant& tenant = *each;
    if (tenant.tenant.seq_len <= limit) continue;
    if (!tenant.seq_len_is_written) {
      tenant.tenant.seq_len = limit;
      continue;
    }
    draft.diagnostics
        .error(
            "G064", value_span(*tenant.spec, "seq_len"),
            "'seq_len' {} of tenant '{}' is too long for model '{}', which was made for {} tokens",
            tenant.tenant.seq_len, tenant.spec->name, shortest->spec->name, limit)
        .note(
            fmt::format("max_position_embeddings in '{}/config.json' is {}", shortest->path, limit))
        .suggest(fmt::format("write seq_len = {}", limit));
  }
}

/// Engines refuse longer prompts, and learners refuse longer samples.
void check_resource_lengths(Draft& draft) {
  for (DraftTenant* const each : draft.all_tenants())
    for (const auto& resource : draft.resources) {
      DraftTenant& tenant = *each;
      const int64_t limit = integer_option(resource, "max_sequence_tokens").value_or(0);
      if (is_frozen(draft, resource)) continue;
      if (limit <= 0 || tenant.tenant.seq_len <= limit) continue;
      if (!tenant.seq_len_is_written) {
        tenant.tenant.seq_len = limit;
        continue;
      }
      draft.diagnostics
          .error("G078", value_span(*tenant.spec, "seq_len"),
                 "'seq_len' {} of tenant '{}' is more than 'max_sequence_tokens' {} of resource "
                 "'{}'",
                 tenant.tenant.seq_len, tenant.spec->name, limit, resource.spec->name)
          .suggest(fmt::format("write seq_len = {}", limit));
      break;
    }
}

}  // namespace

void check_sequence_lengths(Draft& draft) {
  check_model_lengths(draft);
  check_resource_lengths(draft);
  if (draft.any_tenant) draft.settings.tenant_limits.seq_len = draft.any_tenant->tenant.seq_len;
}

void check_message_sizes(Draft& draft) {
  constexpr auto kLimit = static_cast<int64_t>(kMessageBytesMax);
  for (const DraftTenant* const each : draft.all_tenants())
    for (const auto& node : draft.nodes) {
      const DraftTenant& tenant = *each;
      const OutputPort* port = node.contract != nullptr ? sized_output(*node.contract) : nullptr;
      if (port == nullptr) continue;
      const auto bytes = [&](const Tenant& some) {
        return port->bytes_max->value(node.options.get(), std::span(&some, 1));
      };
      if (bytes(tenant.tenant) <= kLimit) continue;
      std::vector<std::string> fitting;
      for (const auto& [name, member] :
           {std::pair("seq_len", &Tenant::seq_len), std::pair("turns_max", &Tenant::turns_max),
            std::pair("group_size", &Tenant::group_size)})
        if (const int64_t most = largest_fitting(tenant.tenant, member, bytes, kLimit); most > 0)
          fitting.push_back(fmt::format("{} = {}", name, most));
      auto& found = draft.diagnostics.error(
          "G069",
          value_span(*tenant.spec, tenant.spec->table->find("seq_len") ? "seq_len" : "group_size"),
          "'{}' of node '{}' could send a {} of {} bytes for tenant '{}', but a message has at "
          "most {}",
          port->name, node.spec->name, port->type->name, bytes(tenant.tenant), tenant.spec->name,
          kLimit);
      found.note(fmt::format("largest: {}", port->bytes_max->text));
      if (!fitting.empty()) found.suggest(fmt::format("at most {}", fmt::join(fitting, ", or ")));
      break;
    }
}

void check_recompute(Draft& draft) {
  // A run with a flight recorder ("ring") cannot be resumed from its record.
  if (!draft.trace.is_on() || draft.trace.level == "ring") return;
  for (const auto& drafted : draft.tenants) {
    const NamedTable* const spec = drafted.spec;
    const Tenant& tenant = drafted.tenant;
    if (tenant.is_client && tenant.checkpoint_every == 0) continue;  // it ends when its client ends
    const bool saves = tenant.checkpoint_every > 0;
    const int64_t num_steps =
        saves ? std::min(tenant.checkpoint_every, tenant.max_steps) : tenant.max_steps;
    if (num_steps <= kRecomputeStepsMax) continue;
    auto& finding = draft.diagnostics.warning(
        "G089", nested_span(*spec, "checkpoint_every"),
        "after a crash up to {} training steps of tenant '{}' are repeated", num_steps,
        tenant.name);
    if (!saves)
      finding.note(fmt::format(
          "without checkpoint_every no state is saved: a resumed run follows the record from its "
          "first step, and cannot resume once the record is larger than trace.bytes_max ({})",
          bytes_text(draft.trace.bytes_max)));
    finding.suggest(fmt::format("write checkpoint_every = {} or less", kRecomputeStepsMax));
  }
}

namespace {

struct Demanded {
  const DraftNode& node;
  const TenantDemand& demand;
  const LearnerLoss& of_learner;
};

/// Reports the fault of the tenant, or of one of its environments, with `demanded`; false if there
/// is none. `written` has the key, if the file has it.
bool report_demand(Draft& draft, const Demanded& demanded, const Tenant& tenant,
                   const NamedTable& written) {
  const auto& [node, demand, of_learner] = demanded;
  std::string fault = demand.fault(node.options.get(), tenant);
  Span span = nested_span(written, demand.key);
  if (fault.empty() && demand.key == "loss" && of_learner.learner != nullptr) {
    fault = demand.fault(node.options.get(), with_numbers_of(of_learner, tenant));
    if (nested_entry(written, demand.key) == nullptr)
      span = nested_span(*of_learner.learner->spec, demand.key);
  }
  if (fault.empty()) return false;
  draft.diagnostics.error("G083", span, "'{}' of tenant '{}' {}", demand.key, tenant.name, fault)
      .note(fmt::format("node '{}' (actor '{}') asks for another value", node.spec->name,
                        node.contract->name))
      .suggest(demand.help);
  return true;
}

/// Whether an item of `environments` may replace the key, "sampling.top_k".
bool is_of_environment(std::string_view key) {
  return mix_options().find(key.substr(0, key.find('.'))) != nullptr;
}

}  // namespace

void check_demands(Draft& draft) {
  const LearnerLoss of_learner = loss_of_learner(draft);
  for (const auto& node : draft.nodes) {
    if (node.contract == nullptr) continue;
    for (const auto& demand : node.contract->demands)
      for (const auto& drafted : draft.tenants) {
        if (drafted.tenant.is_client && !demand.key.starts_with("adapter")) continue;
        const Demanded demanded{node, demand, of_learner};
        if (!is_of_environment(demand.key)) {
          // group_size is the tenant's, but what it must be follows from the advantage of each.
          const Tenant whole = drafted.value(TenantSlot());
          for (size_t i = 0; i < whole.num_environments(); ++i)
            if (report_demand(draft, demanded, whole.in_environment(i), *drafted.spec)) break;
          continue;
        }
        if (drafted.mix.empty()) {
          report_demand(draft, demanded, drafted.tenant, *drafted.spec);
          continue;
        }
        for (const DraftTenant& part : drafted.mix) {
          const bool is_own = nested_entry(*part.spec, demand.key) != nullptr;
          const bool is_fault =
              report_demand(draft, demanded, part.tenant, is_own ? *part.spec : *drafted.spec);
          if (is_fault && !is_own) break;  // a key of the tenant is reported once
        }
      }
  }
}

void check_sequence_room(Draft& draft) {
  for (const auto& resource : draft.resources) {
    if (resource.contract == nullptr || !resource.contract->sequence_limit ||
        resource.users.empty() || is_frozen(draft, resource))
      continue;
    const auto* model =
        resource.model >= 0 ? &draft.models[static_cast<size_t>(resource.model)] : nullptr;
    const auto limit = resource.contract->sequence_limit(
        resource.options.get(), model != nullptr && model->facts ? &*model->facts : nullptr);
    for (const auto& tenant : draft.tenants) {
      if (tenant.tenant.is_client) continue;  // each of its requests has its own max_tokens
      const int64_t num_new =
          std::min(tenant.tenant.sampling.max_tokens, tenant.tenant.seq_len - 1);
      if (1 + num_new <= limit.tokens) continue;
      draft.diagnostics
          .error("G084",
                 written_span(draft, {value_span(*resource.spec, limit.option),
                                      nested_span(*tenant.spec, "sampling.max_tokens")}),
                 "a sequence of {} '{}' has at most {} tokens, but tenant '{}' requests {} new "
                 "ones after its prompt",
                 resource.common.kind, resource.spec->name, limit.tokens, tenant.spec->name,
                 num_new)
          .note("an engine accepts a prompt only if the prompt and max_tokens fit together")
          .suggest(fmt::format("raise {}, or lower sampling.max_tokens of the tenant",
                               limit.option == "kv_blocks" ? "kv_blocks or block_size"
                                                           : fmt::format("'{}'", limit.option)));
      break;
    }
  }
}

}  // namespace primerl
