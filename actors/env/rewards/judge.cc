#include "actors/env/rewards/judge.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/common/text.h"
#include "actors/env/reward.h"
#include "actors/env/rewards/number.h"
#include "graph/base/json.h"
#include "graph/base/terminal_text.h"
#include "kernels/engine/sampling_params.h"

namespace primerl {
namespace {

constexpr double kBestMax = 1e6;
constexpr int64_t kAnswerTokensMax = 65536;
constexpr size_t kRubricBytesMax = size_t{64} << 10;  // of `rubric`, `prompt` and `system` each

/// A name in a prompt, and the text that replaces it.
struct PromptName {
  std::string_view name;
  std::string text;
};

/// The text of a task, as the policy reads it.
std::string question_of(const EnvironmentTask& task) {
  if (task.messages.empty()) return task.prompt;
  if (task.messages.size() == 1) return text_of(task.messages.front());
  std::string all;
  for (const ChatMessage& message : task.messages)
    all += fmt::format("{}{}: {}", all.empty() ? "" : "\n\n", message.role, text_of(message));
  return all;
}

/// Each name is replaced once: braces in the texts stay as they are.
std::string filled(std::string_view prompt, std::span<const PromptName> names) {
  std::string text;
  while (!prompt.empty()) {
    const auto next = std::ranges::find_if(
        names, [&](const PromptName& each) { return prompt.starts_with(each.name); });
    if (next == names.end()) {
      text += prompt.front();
      prompt.remove_prefix(1);
    } else {
      text += next->text;
      prompt.remove_prefix(next->name.size());
    }
  }
  return text;
}

std::string built_in_prompt(const JudgeOptions& options, bool has_question, bool has_reference) {
  std::string prompt = "Judge an answer.\n";
  if (has_question) prompt += "\nQuestion:\n{question}\n";
  if (has_reference) prompt += "\nReference answer:\n{reference}\n";
  prompt += "\nAnswer to judge:\n{answer}\n\nRubric:\n{rubric}\n\n";
  if (options.score == "yes_no")
    return prompt + fmt::format("Does the answer fulfil the rubric? Write only {} or {}.",
                                options.yes, options.no);
  return prompt + fmt::format(
                      "Write your last line as a number from 0 (worst) to {:g} (best), "
                      "and nothing else in that line.",
                      options.best);
}

Status validate_judge(const void* bound) {
  const auto& options = *static_cast<const JudgeOptions*>(bound);
  for (const auto& [name, text] :
       {std::pair("rubric", &options.rubric), std::pair("prompt", &options.prompt),
        std::pair("system", &options.system)})
    if (text->size() > kRubricBytesMax)
      return error(Code::kInvalid, "'{}' has {} bytes, at most {} are allowed", name, text->size(),
                   kRubricBytesMax);
  if (!options.prompt.empty() && options.prompt.find("{answer}") == std::string::npos)
    return error(Code::kInvalid,
                 "'prompt' has no {{answer}}, so the judge would not see the answer")
        .note("it may have {question}, {reference}, {answer} and {rubric}");
  if (options.yes == options.no)
    return error(Code::kInvalid, "'yes' and 'no' are both '{}'", shown_text(options.yes, 40));
  if (options.kwargs.empty()) return ok();
  ASSIGN_OR_RETURN(const Json kwargs, parse_json(options.kwargs, "'kwargs'"));
  if (!kwargs.is_object())
    return error(Code::kInvalid, "'kwargs' is {}, not an object", kwargs.kind());
  return ok();
}

OptionSet judge_option_set() {
  using O = JudgeOptions;
  return OptionsOf<O>()
      .field("rubric", &O::rubric, required() | at_least(1),
             "what a good answer is; the judge reads it")
      .field("prompt", &O::prompt, any(),
             "the text that the judge reads, with {question}, {reference}, {answer} and {rubric}; "
             "empty: the built-in one")
      .field("system", &O::system, any(), "a system message before it; empty: none")
      .field("score", &O::score, one_of({"number", "yes_no"}),
             "\"number\": the number in the last line of the judge's answer, divided by 'best'; "
             "\"yes_no\": the probability that its first token is 'yes', not 'no'")
      .field("best", &O::best, above_up_to(0, kBestMax), "the number that gives a score of 1")
      .field("yes", &O::yes, at_least(1), "one token of the judge, for \"yes_no\"")
      .field("no", &O::no, at_least(1), "one token of the judge, for \"yes_no\"")
      .field("max_tokens", &O::max_tokens,
             between(1, static_cast<double>(kAnswerTokensMax)) | unit("tokens"),
             "longest answer of the judge, for \"number\"")
      .field("temperature", &O::temperature, zero_or(between(kTemperatureMin, 2)),
             "of the judge, for \"number\"")
      .field("unparsed", &O::unparsed, one_of({"fail", "zero"}),
             "an answer without a score: \"fail\" ends the rollout as failed, \"zero\" is a score "
             "of 0")
      .field("kwargs", &O::kwargs, any(),
             "chat_template_kwargs of the judge as a JSON object: "
             "'{\"enable_thinking\": false}'")
      .field("timeout", &O::timeout, above(0), "from the question to the score");
}

}  // namespace

RewardContract judge_reward() {
  RewardContract contract;
  contract.name = kJudgeReward;
  contract.doc = "another model of the graph, which does not train, scores the last turn";
  contract.options = judge_option_set();
  contract.validate = &validate_judge;
  contract.make = [](const void*) -> Result<std::unique_ptr<Reward>> {
    return error(Code::kUnavailable, "a model of the graph gives this reward, so it has no code")
        .note("only the node 'judge' asks it");
  };
  return contract;
}

const JudgeOptions& judge_options_of(const TenantReward& reward) {
  static const JudgeOptions defaults;
  return reward.options == nullptr ? defaults
                                   : *static_cast<const JudgeOptions*>(reward.options.get());
}

int64_t num_judges(const Tenant& tenant) {
  return std::ranges::count_if(tenant.rewards, &is_judge);
}

Duration judge_time(const Tenant& tenant) {
  Duration longest;
  for (const TenantReward& reward : tenant.rewards)
    if (is_judge(reward)) longest = std::max(longest, judge_options_of(reward).timeout);
  return longest;
}

std::vector<ChatMessage> judge_question(const JudgeOptions& options, const EnvironmentTask& task,
                                        const std::vector<std::string>& actions) {
  const PromptName names[] = {
      {"{question}", question_of(task)},
      {"{reference}", task.answer},
      {"{answer}", actions.empty() ? std::string() : actions.back()},
      {"{rubric}", options.rubric},
  };
  const std::string prompt =
      options.prompt.empty()
          ? built_in_prompt(options, !names[0].text.empty(), !task.answer.empty())
          : options.prompt;
  std::vector<ChatMessage> messages;
  if (!options.system.empty()) messages.push_back(chat_message("system", options.system));
  messages.push_back(chat_message("user", filled(prompt, names)));
  return messages;
}

Result<double> judge_rating(const JudgeOptions& options, std::string_view answer) {
  std::string_view line = trimmed(answer);
  if (line.empty()) return error(Code::kInvalid, "the judge's answer is empty");
  const size_t newline = line.rfind('\n');
  if (newline != std::string_view::npos) line = trimmed(line.substr(newline + 1));
  std::optional<double> number = last_number(line);
  const size_t slash = line.rfind('/');
  if (slash != std::string_view::npos && last_number(line.substr(slash)) == options.best)
    if (const auto before = last_number(line.substr(0, slash))) number = before;
  if (!number)
    return error(Code::kInvalid, "the last line of the judge's answer has no number: '{}'",
                 shown_text(std::string(line), 80));
  if (*number < 0 || *number > options.best)
    return error(Code::kInvalid, "the judge's number {:g} is not in [0, {:g}]", *number,
                 options.best);
  return *number / options.best;
}

}  // namespace primerl
