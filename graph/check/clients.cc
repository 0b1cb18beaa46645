// Tenants that a client trains, `client = true`: the keys that only a loop of the graph reads, and
// the values that they have instead.
#include <algorithm>

#include "graph/check/names.h"
#include "graph/check/rules.h"

namespace primerl {
namespace {

/// A key that a client's tenant must not write, and who has its value instead.
struct LoopKey {
  std::string_view key;
  std::string_view why;
};
constexpr std::string_view kNoTasks = "the client has its own tasks and rewards";
constexpr std::string_view kNoBatches = "each request of the client has the data of one pass";
constexpr std::string_view kNoEnd = "the run does not end by its steps: the client ends it";
constexpr std::string_view kOwnLoss = "each request of the client names its loss";
constexpr LoopKey kLoopKeys[] = {
    {"environment", kNoTasks},
    {"environments", kNoTasks},
    {"reward", kNoTasks},
    {"curriculum", kNoTasks},
    {"eval", kNoTasks},
    {"filters", kNoTasks},
    {"environment_timeout", kNoTasks},
    {"rollout_timeout", kNoTasks},
    {"turns_max", kNoTasks},
    {"group_size", kNoBatches},
    {"batch_size", kNoBatches},
    {"straggler_wait_ms", kNoBatches},
    {"max_off_policy_steps", "the client decides how old its data may be"},
    {"max_steps", kNoEnd},
    {"epochs", kNoEnd},
    {"loss", kOwnLoss},
    {"advantage", kOwnLoss},
    {"teacher", kOwnLoss},
    {"schedule", "each update of the client has its learning rate"},
    {"sampling", "each request of the client says how tokens are sampled"},
};

constexpr std::string_view kPassMessage = "PassRequest";
constexpr int64_t kClientInflight = 64;  // samples, if the file has no number

/// `client` as another key: refuses the keys of `drafted` that have no meaning.
void check_client(Draft& draft, const DraftTenant& drafted) {
  const NamedTable& spec = *drafted.spec;
  for (const LoopKey& loop : kLoopKeys) {
    const Entry* const written = spec.table->find(loop.key);
    if (written == nullptr) continue;
    draft.diagnostics
        .error("G085", written->key_span, "'{}' of tenant '{}' has no meaning: {}", loop.key,
               spec.name, loop.why)
        .note("with client = true the tenant is trained by a client and not by a loop of the graph")
        .suggest(fmt::format("remove '{}', or remove client = true", loop.key));
  }
  if (!drafted.tenant.adapter.is_there())
    draft.diagnostics
        .error("G085", value_span(spec, "client"), "tenant '{}' has client = true but no adapter",
               spec.name)
        .note("a client trains an adapter on weights that do not change")
        .suggest(fmt::format("add [tenant.{}.adapter] with rank = 16, for example", spec.name));
  const std::string& kind = drafted.tenant.optimizer.kind;
  if (!kind.empty() && kind != "adamw")
    draft.diagnostics
        .error("G085", nested_span(spec, "optimizer.kind"),
               "the optimizer '{}' of tenant '{}' has no step of a client's numbers", kind,
               spec.name)
        .suggest("write kind = \"adamw\", or leave it out");
  const auto& own = drafted.tenant.optimizer;
  const std::pair<std::string_view, double> numbers[] = {
      {"lr", own.lr},       {"weight_decay", own.weight_decay}, {"beta1", own.beta1},
      {"beta2", own.beta2}, {"epsilon", own.epsilon},           {"max_norm", own.max_norm}};
  for (const auto& [key, value] : numbers) {
    if (value < 0) continue;  // not written
    draft.diagnostics
        .error("G085", nested_span(spec, fmt::format("optimizer.{}", key)),
               "'{}' of the optimizer of tenant '{}' has no meaning: each update of the client has "
               "its own",
               key, spec.name)
        .suggest(fmt::format("remove '{}', or remove client = true", key));
  }
}

}  // namespace

std::vector<std::string> keys_of_loops() {
  std::vector<std::string> keys;
  for (const LoopKey& loop : kLoopKeys) keys.emplace_back(loop.key);
  return keys;
}

/// The smallest numbers of a loop, so that no bound or memory grows by groups that it never has.
void fill_client(Tenant& tenant) {
  if (!tenant.is_client) return;
  if (tenant.snapshots == 0) tenant.snapshots = static_cast<int64_t>(kClientSnapshotsMax);
  tenant.group_size = tenant.batch_size = tenant.turns_max = 1;
  tenant.max_off_policy_steps = 0;
  tenant.max_steps = kClientStepsMax;
  if (tenant.inflight == 0) tenant.inflight = kClientInflight;
}

void check_clients(Draft& draft) {
  for (const DraftTenant& drafted : draft.tenants) {
    if (drafted.tenant.is_client) {
      check_client(draft, drafted);
    } else if (const Entry* const written = drafted.spec->table->find("snapshots")) {
      draft.diagnostics
          .error("G085", written->key_span, "'snapshots' of tenant '{}' has no meaning",
                 drafted.spec->name)
          .note("snapshots are weights that a client keeps for its samplers")
          .suggest("remove 'snapshots', or write client = true");
    }
  }
}

/// A tenant of clients needs a node that serves them: the one that sends passes to its trainer.
/// So do limits that let clients join. Limits that do not have refused the tenant already.
void check_servers_of_clients(Draft& draft) {
  const bool may_join = draft.any_tenant && draft.settings.tenant_limits.clients;
  if (draft.spec.has_lost_edges || (draft.any_tenant && !may_join)) return;
  const auto first = std::ranges::find_if(
      draft.tenants, [](const DraftTenant& drafted) { return drafted.tenant.is_client; });
  if (first == draft.tenants.end() && !may_join) return;
  const auto sends_passes = [&draft](const DraftEdge& edge) {
    if (!edge.is_whole()) return false;
    const auto& node = draft.nodes[static_cast<size_t>(edge.from)];
    return node.contract != nullptr &&
           node.contract->outputs[static_cast<size_t>(edge.output)].type->name == kPassMessage;
  };
  if (std::ranges::any_of(draft.edges, sends_passes)) return;
  const bool is_of_limits = first == draft.tenants.end();
  const std::string what = is_of_limits
                               ? std::string("[graph.tenant_limits] has clients = true")
                               : fmt::format("tenant '{}' has client = true", first->spec->name);
  draft.diagnostics
      .error("G085",
             is_of_limits ? value_span(*draft.any_tenant->spec, "clients")
                          : value_span(*first->spec, "client"),
             "{}, but no node of the graph serves clients", what)
      .suggest(
          "remove [edges]: then a tinker node is implied, or add [resource.tinker] (kind = "
          "\"outside\", backend = \"http\"), [node.tinker] and its edges");
}

}  // namespace primerl
