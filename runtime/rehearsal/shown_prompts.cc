#include "runtime/rehearsal/shown_prompts.h"

#include <algorithm>

#include "actors/common/tenant_chat.h"
#include "actors/data/data.h"
#include "actors/data/example_tokens.h"
#include "graph/base/counted.h"
#include "graph/base/terminal_text.h"
#include "runtime/rehearsal/rehearsal_rows.h"
#include "runtime/rehearsal/rehearsal_tasks.h"

namespace primerl {
namespace {

void add_parts(const chat::RenderedChat& rendered, ShownPrompt& shown) {
  size_t begin = 0;
  for (const auto& run : rendered.runs) {
    const bool is_template = chat::is_from_template(run.origin);
    const std::string_view text = std::string_view(rendered.text).substr(begin, run.end - begin);
    begin = run.end;
    if (shown.parts.empty() || shown.parts.back().is_template != is_template)
      shown.parts.push_back({is_template, ""});
    shown.parts.back().text += text;
  }
}

Status show_task(const EnvironmentTask& task, const Tenant& tenant, const Tokenizer& tokenizer,
                 ShownPrompt& shown) {
  const auto messages = conversation_of(tenant, tokenizer, task);
  if (messages.empty()) {
    shown.parts.push_back({false, task.prompt});
    ASSIGN_OR_RETURN(shown.ids, encode_start(tokenizer, task.prompt));
    return ok();
  }
  ASSIGN_OR_RETURN(const auto chat, checked_chat_format(tenant, tokenizer));
  RETURN_IF_ERROR(check_messages(messages));
  ASSIGN_OR_RETURN(const auto tools, tools_from_text(task.tools));
  ASSIGN_OR_RETURN(const auto rendered, chat.render(messages, tools ? &*tools : nullptr, true));
  shown.template_file = chat.source().name();
  add_parts(rendered, shown);
  ASSIGN_OR_RETURN(shown.ids, chat.encode(rendered));
  return ok();
}

/// The first environment of a tenant that has several.
Status show_environment(const Plan& plan, const Tenant& of_all, const Tokenizer& tokenizer,
                        ShownPrompt& shown) {
  const Tenant& tenant = of_all.in_environment(0);
  const EnvironmentContract* contract = tenant.environment.contract;
  shown.source = fmt::format("task 0 of environment '{}'", tenant.environment_label());
  if (contract == nullptr || !contract->make)
    return error(Code::kInvalid, "the tenant has no environment");
  if (contract->outside)
    return error(Code::kInvalid,
                 "environment '{}' is asked in another process, which is not "
                 "started here",
                 tenant.environment.name);
  ASSIGN_OR_RETURN(const auto environment, contract->make(tenant.environment.options.get()));
  const auto seed = static_cast<uint64_t>(plan.settings.seed);
  ASSIGN_OR_RETURN(const auto task, environment->task(0, RandomStream(mix(seed, 0))));
  return show_task(task, tenant, tokenizer, shown);
}

Status show_example(const DataOptions& options, const Tenant& tenant, const Tokenizer& tokenizer,
                    ShownPrompt& shown) {
  ASSIGN_OR_RETURN(const auto examples, read_examples(options.file, options.examples_max));
  const DataExample& example = examples.front();
  shown.source = fmt::format("{}:{}", options.file, example.line);
  const auto chat = checked_chat_format(tenant, tokenizer);
  Trajectory row;
  RETURN_IF_ERROR(fill_example(row, example, tokenizer, chat));
  shown.ids = std::move(row.tokens);
  shown.trains = std::move(row.sampled);
  if (example.messages.empty()) {
    shown.parts.push_back({false, example.prompt});
    for (const DataTurn& turn : example.turns)
      shown.parts.back().text += turn.completion + turn.observation;
    return ok();
  }
  shown.template_file = chat->source().name();
  ASSIGN_OR_RETURN(const auto tools, tools_from_text(example.tools));
  ASSIGN_OR_RETURN(const auto rendered,
                   chat->render(example.messages, tools ? &*tools : nullptr, false));
  add_parts(rendered, shown);
  return ok();
}

/// The data node of a tenant that reads a file; null if its tasks come from an environment.
const DataOptions* data_of(const Plan& plan, const Tenant& tenant) {
  for (const PlanNode& node : plan.nodes) {
    if (node.contract->name != "data") continue;
    const auto* options = static_cast<const DataOptions*>(node.options.get());
    const bool is_of_tenant =
        std::any_of(node.instances.begin(), node.instances.end(), [&](InstanceId id) {
          const TenantSlot slot = plan.instance(id).tenant;
          return slot.is_none() || slot == tenant.slot;
        });
    if (is_of_tenant && !options->file.empty()) return options;
  }
  return nullptr;
}

/// The ids, sixteen a line; `*` behind those that train.
std::string ids_text(const ShownPrompt& prompt) {
  std::string text;
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    if (i % 16 == 0) text += i == 0 ? "  ids      " : "\n           ";
    const bool trains = i < prompt.trains.size() && prompt.trains[i] != 0;
    text += fmt::format("{}{} ", prompt.ids[i], trains ? "*" : "");
  }
  if (!text.empty()) text.back() = '\n';
  return text;
}

}  // namespace

std::vector<ShownPrompt> shown_prompts(const Plan& plan) {
  std::vector<ShownPrompt> prompts;
  const auto tokenizer = tokenizer_of(plan);
  for (const Tenant& tenant : plan.tenants) {
    ShownPrompt shown;
    shown.tenant = tenant.name;
    const DataOptions* data = data_of(plan, tenant);
    Status made = ok();
    if (tokenizer == nullptr)
      made = error(Code::kNotFound, "no model folder has a tokenizer");
    else if (data != nullptr)
      made = show_example(*data, tenant, *tokenizer, shown);
    else
      made = show_environment(plan, tenant, *tokenizer, shown);
    if (!made.ok()) shown.fault = made.error().text();
    prompts.push_back(std::move(shown));
  }
  return prompts;
}

std::string prompt_text(const ShownPrompt& prompt) {
  const std::string name = fmt::format("prompt of tenant '{}'", prompt.tenant);
  if (!prompt.fault.empty()) return fmt::format("{}: none: {}\n", name, prompt.fault);
  std::string text = fmt::format(
      "{}: {}, {}, {}\n", name, prompt.source, counted(prompt.ids.size(), "token"),
      prompt.template_file.empty() ? "a plain text" : "rendered by " + prompt.template_file);
  for (const auto& part : prompt.parts)
    text += fmt::format("  {} \"{}\"\n", part.is_template ? "template" : "data    ",
                        terminal_text(part.text, false));
  return text + ids_text(prompt);
}

Json prompt_json(const ShownPrompt& prompt) {
  Json json = Json::object().set("tenant", prompt.tenant);
  if (!prompt.fault.empty()) return json.set("fault", prompt.fault);
  Json parts = Json::array();
  for (const auto& part : prompt.parts)
    parts.push_back(
        Json::object().set("from", part.is_template ? "template" : "data").set("text", part.text));
  json.set("source", prompt.source).set("template", prompt.template_file);
  json.set("parts", std::move(parts)).set("token_ids", Json::list(prompt.ids));
  if (prompt.trains.empty()) return json;
  Json trains = Json::array();
  for (const uint8_t each : prompt.trains) trains.push_back(each != 0);
  return json.set("trains", std::move(trains));
}

}  // namespace primerl
