#include "runtime/rehearsal/rehearsal_rows.h"

#include <algorithm>

#include "actors/common/tenant_chat.h"
#include "actors/data/example_tokens.h"

namespace primerl {
namespace {

/// Counts the rows with a fault and keeps the first.
class RowFaults {
 public:
  void add(Error fault) {
    ++count_;
    if (!first_) first_ = std::move(fault);
  }
  std::optional<Error> finish(size_t num_rows) {
    if (count_ > 1)
      (void)std::move(*first_).note(
          fmt::format("{} of {} rows do not fit; this is the first", count_, num_rows));
    return std::move(first_);
  }

 private:
  std::optional<Error> first_;
  size_t count_ = 0;
};

/// The tokens of a task's prompt; a bound where that is below `enough`.
Result<int64_t> num_prompt_tokens(const EnvironmentTask& task, const Tenant& tenant,
                                  const Tokenizer& tokenizer, const Result<chat::ChatFormat>& chat,
                                  int64_t enough) {
  const auto messages = conversation_of(tenant, tokenizer, task);
  if (messages.empty()) {
    const int64_t bound =
        tokens_bound(task.prompt) + static_cast<int64_t>(tokenizer.prefix_ids().size());
    if (bound < enough) return bound;
    ASSIGN_OR_RETURN(const auto ids, encode_start(tokenizer, task.prompt));
    return static_cast<int64_t>(ids.size());
  }
  if (!chat.ok()) return Error(chat.error());
  RETURN_IF_ERROR(check_messages(messages));
  ASSIGN_OR_RETURN(const auto tools, tools_from_text(task.tools));
  ASSIGN_OR_RETURN(const auto rendered, chat->render(messages, tools ? &*tools : nullptr, true));
  if (const int64_t bound = tokens_bound(rendered.text); bound < enough) return bound;
  ASSIGN_OR_RETURN(const auto ids, chat->encode(rendered));
  return static_cast<int64_t>(ids.size());
}

/// A bound of the tokens of an example; INT64_MAX if there is no cheap one.
int64_t example_bound(const DataExample& example, const Tokenizer& tokenizer,
                      const Result<chat::ChatFormat>& chat) {
  if (!example.messages.empty()) {
    const auto tools = tools_from_text(example.tools);
    if (!chat.ok() || !tools.ok()) return INT64_MAX;
    const auto rendered = chat->render(example.messages, *tools ? &**tools : nullptr, false);
    return rendered.ok() ? tokens_bound(rendered->text) : INT64_MAX;
  }
  int64_t bound =
      tokens_bound(example.prompt) + static_cast<int64_t>(tokenizer.prefix_ids().size());
  for (const DataTurn& turn : example.turns)
    bound += tokens_bound(turn.completion) + tokens_bound(turn.observation) + 1;
  return bound;
}

}  // namespace

Result<chat::ChatFormat> checked_chat_format(const Tenant& tenant, const Tokenizer& tokenizer) {
  if (!tenant.chat.date.empty()) return chat_format_of(tenant, tokenizer);
  Tenant dated = tenant;
  dated.chat.date = "2026-11-26";
  return chat_format_of(dated, tokenizer);
}

std::vector<ChatMessage> conversation_of(const Tenant& tenant, const Tokenizer& tokenizer,
                                         const EnvironmentTask& task) {
  if (!task.messages.empty()) return task.messages;
  if (tenant.chat.prompts != "user" || tokenizer.chat_source() == nullptr) return {};
  return {chat_message("user", task.prompt)};
}

std::optional<Error> fault_of_tasks(const RowTasks& rows, const Tenant& tenant,
                                    const Tokenizer& tokenizer) {
  const auto chat = checked_chat_format(tenant, tokenizer);
  RowFaults faults;
  for (size_t row = 0; row < rows.num_rows(); ++row) {
    const auto task = rows.task_of_row(row);
    if (!task.ok()) return task.error();
    const auto count = num_prompt_tokens(*task, tenant, tokenizer, chat, tenant.seq_len);
    if (!count.ok())
      faults.add(rows.fault_of_row(row, count.error().text()));
    else if (*count >= tenant.seq_len)
      faults.add(rows.fault_of_row(
          row, fmt::format("the prompt has {} tokens, and 'seq_len' {} of tenant '{}' leaves none "
                           "to sample",
                           *count, tenant.seq_len, tenant.name)));
  }
  return faults.finish(rows.num_rows());
}

std::optional<Error> fault_of_examples(const std::string& file,
                                       const std::vector<DataExample>& examples,
                                       const Tenant& tenant, const Tokenizer& tokenizer) {
  const auto chat = checked_chat_format(tenant, tokenizer);
  RowFaults faults;
  for (const DataExample& example : examples) {
    if (example_bound(example, tokenizer, chat) <= tenant.seq_len) continue;
    Trajectory trajectory;
    const Status filled = fill_example(trajectory, example, tokenizer, chat);
    const auto length = static_cast<int64_t>(trajectory.tokens.size());
    if (!filled.ok())
      faults.add(Error(filled.error()).while_doing(fmt::format("{}:{}", file, example.line)));
    else if (length > tenant.seq_len)
      faults.add(error(Code::kInvalid,
                       "{}:{}: the row has {} tokens, 'seq_len' of tenant '{}' is {}", file,
                       example.line, length, tenant.name, tenant.seq_len));
  }
  return faults.finish(examples.size());
}

std::vector<IdleTenantOption> idle_chat_options(const Tenant& tenant) {
  const TenantChat defaults;
  const TenantChat& chat = tenant.chat;
  std::vector<IdleTenantOption> idle;
  const auto add = [&](std::string_view key, bool is_written) {
    if (is_written)
      idle.push_back({fmt::format("chat.{}", key),
                      "no task is a conversation, so no chat template is used",
                      "give tasks 'messages', or write prompts = \"user\" beside it"});
  };
  add("name", chat.name != defaults.name);
  add("kwargs", chat.kwargs != defaults.kwargs);
  add("date", chat.date != defaults.date);
  add("parser", chat.parser != defaults.parser);
  add("history", chat.history != defaults.history);
  return idle;
}

std::vector<IdleTenantOption> idle_dataset_options(const DatasetOptions& options) {
  std::vector<IdleTenantOption> idle;
  if (!options.weights.empty() && options.files.size() <= 1)
    idle.push_back({"environment.weights", "the data set has one file", "remove it"});
  if (options.seed != 0 && !options.shuffle && options.holdout == 0)
    idle.push_back({"environment.seed",
                    "'shuffle' is false and 'holdout' is 0, so nothing is chosen by the seed",
                    "remove it, or write shuffle = true"});
  return idle;
}

}  // namespace primerl
