#include "runtime/rehearsal/rehearsal_tasks.h"

#include <algorithm>
#include <optional>

#include "actors/data/data.h"
#include "actors/judge/judge.h"
#include "kernels/text/tokenizer.h"
#include "runtime/rehearsal/rehearsal_rows.h"

namespace primerl {
namespace {

using SampleTasks = std::vector<EnvironmentContract::SampleTask>;

bool takes_tasks(const Plan& plan) {
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [](const PlanNode& node) {
    return node.contract->takes_tasks && node.contract->takes_tasks(node.options.get());
  });
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
                                   tenant.environment_label(), tenant.name, fault);
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
void check_chat(CheckedGraph& checked, const Tenant& tenant, const Tokenizer& tokenizer,
                bool has_later_turns) {
  if (tenant.chat.prompts != "user") return;
  const auto format = checked_chat_format(tenant, tokenizer);
  Status usable = format.ok() ? ok() : Status(format.error());
  const bool is_exact = tenant.chat.history == "exact";
  if (usable.ok() && has_later_turns && is_exact) usable = format->check_exact();
  if (usable.ok()) return;
  auto& diagnostic = report(checked, tenant, usable.error().message());
  for (const auto& note : usable.error().notes()) diagnostic.note(note);
}

/// Whether the model can read what option `key` of the tenant needs a chat template for.
bool has_template_for(CheckedGraph& checked, const Tenant& tenant, const Tokenizer& tokenizer,
                      std::string_view key, const std::string& need, std::string_view help) {
  const auto format = checked_chat_format(tenant, tokenizer);
  if (format.ok()) return true;
  const std::string table = "tenant." + tenant.name;
  const auto written = checked.tables.find(fmt::format("{}.{}", table, key));
  const Span where = written == checked.tables.end() ? checked.tables.at(table) : written->second;
  auto& diagnostic =
      checked.diagnostics.error("G086", where, "{}, which only a chat template can write: {}", need,
                                format.error().message());
  for (const auto& note : format.error().notes()) diagnostic.note(note);
  diagnostic.suggest(std::string(help));
  return false;
}

bool can_read_tools(CheckedGraph& checked, const Tenant& tenant, const Tokenizer& tokenizer) {
  return has_template_for(
      checked, tenant, tokenizer, "environment.name",
      fmt::format("environment '{}' of tenant '{}' gives the policy tools",
                  tenant.environment_label(), tenant.name),
      "choose a chat model whose template knows tools, or an environment without");
}

bool can_read_rows(CheckedGraph& checked, const Tenant& tenant, const Tokenizer& tokenizer,
                   const DatasetOptions& options) {
  if (options.messages.empty() && options.system.empty()) return true;
  const std::string option = options.messages.empty() ? "system" : "messages";
  return has_template_for(
      checked, tenant, tokenizer, "environment." + option,
      fmt::format("'{}' of the data set makes each task of tenant '{}' a conversation", option,
                  tenant.name),
      options.messages.empty()
          ? "choose a chat model, or leave 'system' out and begin each prompt with its text"
          : "choose a chat model, or a data set with prompts");
}

void report_row(CheckedGraph& checked, const Tenant& tenant, const Error& fault) {
  auto& diagnostic =
      checked.diagnostics.error("G086", checked.tables.at("tenant." + tenant.name),
                                "a row does not fit tenant '{}': {}", tenant.name, fault.message());
  for (const auto& note : fault.notes()) diagnostic.note(note);
  diagnostic.suggest("raise 'seq_len', or remove or shorten the row");
}

/// A resolved graph writes all options, so only those with an effect elsewhere come here.
void warn_idle(CheckedGraph& checked, const Tenant& tenant,
               const std::vector<IdleTenantOption>& options) {
  for (const auto& [key, reason, help] : options) {
    const auto written = checked.tables.find(fmt::format("tenant.{}.{}", tenant.name, key));
    if (written == checked.tables.end()) continue;
    checked.diagnostics
        .warning("G090", written->second, "'{}' of tenant '{}' has no effect: {}", key, tenant.name,
                 reason)
        .suggest(help);
  }
}

/// Whether the first task of an environment of this process is a conversation.
bool has_conversation(const Plan& plan, const Tenant& tenant, Environment& environment) {
  if (tenant.chat.prompts == "user") return true;
  const auto seed = static_cast<uint64_t>(plan.settings.seed);
  const auto task = environment.task(0, RandomStream(mix(seed, 0)));
  return !task.ok() || !task->messages.empty();
}

/// Every row of the files of data nodes.
void check_data_nodes(CheckedGraph& checked, const Tokenizer& tokenizer) {
  const Plan& plan = *checked.plan;
  for (const PlanNode& node : plan.nodes) {
    if (node.contract->name != "data") continue;
    const auto& options = *static_cast<const DataOptions*>(node.options.get());
    if (options.file.empty()) continue;
    const auto examples = read_examples(options.file, options.examples_max);
    if (!examples.ok()) continue;  // reported before
    const bool has_messages = std::any_of(examples->begin(), examples->end(),
                                          [](const auto& each) { return !each.messages.empty(); });
    for (const InstanceId id : node.instances) {
      const TenantSlot slot = plan.instance(id).tenant;
      if (plan.is_vacant(id)) continue;
      const Tenant& tenant = plan.tenants[slot.is_none() ? 0 : slot.index()];
      if (const auto fault = fault_of_examples(options.file, *examples, tenant, tokenizer))
        report_row(checked, tenant, *fault);
      if (!has_messages) warn_idle(checked, tenant, idle_chat_options(tenant));
    }
  }
}

void check_environment(CheckedGraph& checked, const Tenant& tenant, const Tokenizer* tokenizer) {
  const EnvironmentContract* environment = tenant.environment.contract;
  const void* options = tenant.environment.options.get();
  std::unique_ptr<Environment> made;
  if (environment != nullptr && environment->make && !environment->outside)
    if (auto result = environment->make(options); result.ok()) made = std::move(result).value();
  if (made != nullptr && !has_conversation(*checked.plan, tenant, *made))
    warn_idle(checked, tenant, idle_chat_options(tenant));
  if (made != nullptr && options != nullptr && tenant.environment.name == "dataset")
    warn_idle(checked, tenant, idle_dataset_options(*static_cast<const DatasetOptions*>(options)));
  const auto* rows = dynamic_cast<const RowTasks*>(made.get());
  const bool has_tools = tenant.environment.name == "mcp";
  if (has_tools && tokenizer != nullptr && !can_read_tools(checked, tenant, *tokenizer)) return;
  if (tokenizer != nullptr)
    check_chat(checked, tenant, *tokenizer, tenant.turns_max > 1 && rows == nullptr);
  if (rows != nullptr) {
    if (tokenizer == nullptr) return;
    if (options != nullptr && tenant.environment.name == "dataset" &&
        !can_read_rows(checked, tenant, *tokenizer, *static_cast<const DatasetOptions*>(options)))
      return;
    if (const auto fault = fault_of_tasks(*rows, tenant, *tokenizer))
      report_row(checked, tenant, *fault);
    return;
  }
  if (environment == nullptr || !environment->first_tasks) return;
  const auto tasks = environment->first_tasks(
      options, static_cast<uint64_t>(checked.plan->settings.seed), kSampleTasks);
  // An environment may fail at a task; a run continues with the next one.
  if (!tasks.ok()) return;
  check_turns(checked, tenant, *tasks);
  if (tokenizer != nullptr) check_prompts(checked, tenant, *tasks, *tokenizer);
}

/// The tokenizer of the judges, or of the other nodes; null if there is none, or if it cannot be
/// read.
std::shared_ptr<const Tokenizer> tokenizer_for(const Plan& plan, bool is_of_judge) {
  for (const PlanInstance& instance : plan.instances) {
    if ((plan.node(instance.node).contract->name == kJudgeActor) != is_of_judge) continue;
    for (const int32_t index : instance.resources) {
      if (index < 0) continue;
      const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
      if (resource.kind != Tokenizer::kResourceKind || resource.model < 0) continue;
      auto loaded = load_tokenizer(plan.models[static_cast<size_t>(resource.model)].path);
      if (loaded.ok()) return std::move(loaded).value();
    }
  }
  return nullptr;
}

/// The options of a judge must fit its model: its chat template, and "yes" and "no" as one token.
void check_judges(CheckedGraph& checked) {
  const auto tokenizer = tokenizer_for(*checked.plan, true);
  if (tokenizer == nullptr) return;
  for (const Tenant& tenant : checked.plan->tenants)
    for (const TenantReward& reward : tenant.rewards) {
      if (!is_judge(reward)) continue;
      Tenant dated = tenant;  // any day replaces that of the run
      if (dated.chat.date.empty()) dated.chat.date = "2026-11-26";
      const auto reader = make_judge_reader(reward, dated, *tokenizer);
      if (reader.ok()) continue;
      auto& found =
          checked.diagnostics.error("G085", checked.tables.at("tenant." + tenant.name),
                                    "reward '{}' of tenant '{}' does not fit the judge's model: {}",
                                    reward.label, tenant.name, reader.error().message());
      for (const auto& note : reader.error().notes()) found.note(note);
    }
}

}  // namespace

std::shared_ptr<const Tokenizer> tokenizer_of(const Plan& plan) {
  return tokenizer_for(plan, false);
}

void check_tasks(CheckedGraph& checked) {
  const Plan& plan = *checked.plan;
  const auto tokenizer = tokenizer_of(plan);
  if (tokenizer != nullptr) check_data_nodes(checked, *tokenizer);
  if (!takes_tasks(plan)) return;
  check_judges(checked);
  for (const Tenant& tenant : plan.tenants)
    for (size_t i = 0; !tenant.is_client && i < tenant.num_environments(); ++i)
      check_environment(checked, tenant.in_environment(i), tokenizer.get());
}

}  // namespace primerl
