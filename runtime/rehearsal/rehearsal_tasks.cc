#include "runtime/rehearsal/rehearsal_tasks.h"

#include <algorithm>
#include <optional>

#include "actors/common/tenant_chat.h"
#include "kernels/text/tokenizer.h"

namespace primerl {
namespace {

using SampleTasks = std::vector<EnvironmentContract::SampleTask>;

bool takes_tasks(const Plan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlanNode& node) {
    return node.contract->takes_tasks && node.contract->takes_tasks(node.options.get());
  });
}

/// The tokenizer of the rollouts or examples; null if the folder has none, or one that cannot be
/// read.
std::shared_ptr<const Tokenizer> tokenizer_of(const Plan& plan) {
  for (const PlanResource& resource : plan.resources) {
    if (resource.kind != Tokenizer::kResourceKind || resource.model < 0) continue;
    auto loaded = load_tokenizer(plan.models[static_cast<size_t>(resource.model)].path);
    if (loaded.ok()) return std::move(loaded).value();
  }
  return nullptr;
}

/// Why `prompt` leaves no token to sample; empty when it leaves one.
std::string fault_of_prompt(const std::string& prompt, const Tokenizer& tokenizer,
                            int64_t seq_len) {
  const auto tokens = encode_start(tokenizer, prompt);
  if (!tokens.ok()) return tokens.error().message();
  if (tokens->empty()) return "it has no token";
  const auto length = static_cast<int64_t>(tokens->size());
  if (length < seq_len) return {};
  return fmt::format("it has {} tokens, and 'seq_len' {} leaves no room for an answer", length,
                     seq_len);
}

Diagnostic& report(CheckedGraph& checked, const Tenant& tenant, std::string_view fault) {
  return checked.diagnostics.error("G086", checked.tables.at("tenant." + tenant.name),
                                   "no task of environment '{}' fits tenant '{}': {}",
                                   tenant.environment.name, tenant.name, fault);
}

void check_turns(CheckedGraph& checked, const Tenant& tenant, const SampleTasks& tasks) {
  const auto fewest = std::min_element(
      tasks.begin(), tasks.end(),
      [](const auto& one, const auto& other) { return one.num_turns < other.num_turns; });
  if (fewest->num_turns <= tenant.turns_max) return;
  report(checked, tenant,
         fmt::format("an answer takes {} turns, 'turns_max' is {}", fewest->num_turns,
                     tenant.turns_max))
      .note(fmt::format("drawn: {} tasks, the first is '{}'", tasks.size(),
                        shown_text(tasks.front().prompt, 80)))
      .suggest(fmt::format("write turns_max = {} or more", fewest->num_turns));
}

void check_prompts(CheckedGraph& checked, const Tenant& tenant, const SampleTasks& tasks,
                   const Tokenizer& tokenizer) {
  std::string first;
  for (const auto& task : tasks) {
    const std::string fault = fault_of_prompt(task.prompt, tokenizer, tenant.seq_len);
    if (fault.empty()) return;
    if (first.empty()) first = fault;
  }
  report(checked, tenant, "of the first prompt, " + first)
      .note(fmt::format("drawn: {} tasks, the first is '{}'", tasks.size(),
                        shown_text(tasks.front().prompt, 80)));
}

/// A tenant whose prompts are messages needs a template that is supported, and whose later turns
/// have one text.
void check_chat(CheckedGraph& checked, const Tenant& tenant, const Tokenizer& tokenizer) {
  if (tenant.chat.prompts != "user") return;
  const auto format = chat_format_of(tenant, tokenizer);
  Status usable = format.ok() ? ok() : Status(format.error());
  if (usable.ok() && tenant.turns_max > 1) usable = format->check_exact();
  if (usable.ok()) return;
  auto& diagnostic = report(checked, tenant, usable.error().message());
  for (const auto& note : usable.error().notes()) diagnostic.note(note);
}

}  // namespace

void check_tasks(CheckedGraph& checked) {
  const Plan& plan = *checked.plan;
  if (!takes_tasks(plan)) return;
  const auto tokenizer = tokenizer_of(plan);
  for (const Tenant& tenant : plan.tenants) {
    if (tokenizer != nullptr) check_chat(checked, tenant, *tokenizer);
    const EnvironmentContract* environment = tenant.environment.contract;
    if (environment == nullptr || !environment->first_tasks) continue;
    const auto tasks = environment->first_tasks(
        tenant.environment.options.get(), static_cast<uint64_t>(plan.settings.seed), kSampleTasks);
    // An environment may fail at a task; a run continues with the next one.
    if (!tasks.ok()) continue;
    check_turns(checked, tenant, *tasks);
    if (tokenizer != nullptr) check_prompts(checked, tenant, *tasks, *tokenizer);
  }
}

}  // namespace primerl
