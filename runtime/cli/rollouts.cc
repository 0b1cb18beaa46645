#include <fmt/format.h>

#include "graph/config/diagnostic.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/rollout_search.h"
#include "runtime/cli/run_facts.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr size_t kShownTextBytes = 4000;  // shown of a prompt or completion without --full
constexpr size_t kShownMessagesMax = 64;  // shown of a conversation without --full
constexpr int64_t kRolloutsMax = 1000;

struct RolloutsArguments {
  std::string run = "runs/latest";
  bool best = false, worst = false;
  int64_t count = 3;
  std::string tenant, environment, steps;
  std::string end = "trained";
  bool full = false;
  bool json = false;
};

Result<RolloutQuery> query_of(const RolloutsArguments& arguments) {
  RolloutQuery query;
  if (arguments.best && arguments.worst)
    return error(Code::kInvalid, "--best and --worst cannot be given together");
  if (arguments.best) query.order = RolloutOrder::kBest;
  if (arguments.worst) query.order = RolloutOrder::kWorst;
  query.count_max = static_cast<size_t>(arguments.count);
  query.tenant = arguments.tenant;
  query.environment = arguments.environment;
  query.end = arguments.end;
  if (!arguments.steps.empty()) {
    ASSIGN_OR_RETURN(query.steps, parse_step_range(arguments.steps));
  }
  return query;
}

std::string number_of(const Json& line, std::string_view key) {
  const Json value = member(line, key);
  return value.is_number() ? value.dump() : "?";
}

/// "  versions 30, 31": the versions that sampled the tokens, in order; "" without sampled tokens.
std::string versions_text(const Json& line) {
  std::vector<std::string> versions;
  const Json spans = member(line, "versions");
  if (spans.is_array())
    for (const Json& span : spans.as_array()) versions.push_back(number_of(span, "version"));
  if (versions.empty()) return {};
  return fmt::format("  version{} {}", versions.size() == 1 ? "" : "s", fmt::join(versions, ", "));
}

/// Lines indented by four; control characters that could move the terminal's cursor are escaped.
std::string block_text(std::string_view text, size_t bytes_max) {
  const size_t num_bytes = text.size();
  size_t end = std::min(num_bytes, bytes_max);
  while (end < num_bytes && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;
  text = text.substr(0, end);
  std::string block;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t newline = std::min(text.find('\n', begin), text.size());
    block += "    " + shown_text(text.substr(begin, newline - begin), num_bytes) + "\n";
    begin = newline + 1;
  }
  if (end < num_bytes)
    block += fmt::format("    ... {} more bytes: --full shows them\n", num_bytes - end);
  return block;
}

/// The text of a message: its reasoning, its texts, its calls of tools.
std::string message_text(const Json& message) {
  std::vector<std::string> parts;
  const auto add = [&](std::string part) {
    if (!part.empty()) parts.push_back(std::move(part));
  };
  if (const std::string reasoning = text_member(message, "reasoning"); !reasoning.empty())
    add("(reasoning) " + reasoning);
  const Json content = member(message, "content");
  if (content.is_string()) add(content.as_string());
  if (content.is_array())
    for (const Json& part : content.as_array()) add(text_member(part, "text"));
  const Json calls = member(message, "tool_calls");
  if (calls.is_array())
    for (const Json& call : calls.as_array()) {
      const Json function = member(call, "function");
      const Json arguments = member(function, "arguments");
      add(fmt::format("(calls) {} {}", text_member(function, "name"),
                      arguments.is_string() ? arguments.as_string() : arguments.dump()));
    }
  return fmt::format("{}", fmt::join(parts, "\n"));
}

/// Each message below its role; the tool of a tool message beside it.
std::string messages_text(const Json::Array& messages, bool is_full) {
  const size_t shown = is_full ? messages.size() : std::min(messages.size(), kShownMessagesMax);
  std::string text;
  for (size_t i = 0; i < shown; ++i) {
    const std::string name = text_member(messages[i], "name");
    text += fmt::format("  {}{}\n", shown_text(text_member(messages[i], "role"), 40),
                        name.empty() ? "" : " " + shown_text(name, 80));
    text += block_text(message_text(messages[i]), is_full ? SIZE_MAX : kShownTextBytes);
  }
  if (shown < messages.size())
    text += fmt::format("  ... {} more messages: --full shows them\n", messages.size() - shown);
  return text;
}

std::string rollout_text(const Json& line, bool is_full) {
  const std::string end = text_member(line, "end");
  const auto step = line.get_int("step"), turns = line.get_int("turns");
  std::string text = shown_text(text_member(line, "rollout"), 200) + "  " + shown_text(end, 40);
  if (step.ok() && *step > 0) text += fmt::format(" in step {}", *step);
  text += fmt::format("  reward {}  staleness {}", number_of(line, "reward"),
                      number_of(line, "staleness"));
  if (turns.ok()) text += fmt::format("  {} turn{}", *turns, *turns == 1 ? "" : "s");
  if (const auto samples = line.get_int("samples"); samples.ok() && *samples > 1)
    text += fmt::format("  {} samples", *samples);
  if (const auto branches = line.get_int("branches"); branches.ok()) {
    text += fmt::format("  {} branch{}", *branches, *branches == 1 ? "" : "es");
    for (const auto& [key, name] :
         {std::pair("tool_calls", "tool call"), std::pair("turns_unmatched", "unmatched turn")})
      if (const auto count = line.get_int(key); count.ok() && *count > 0)
        text += fmt::format("  {} {}{}", *count, name, *count == 1 ? "" : "s");
  }
  text += versions_text(line);
  if (const auto truncated = line.get_bool("truncated"); truncated.ok() && *truncated)
    text += "  truncated";
  text += "\n";
  if (const std::string reason = text_member(line, "reason"); !reason.empty())
    text += "  reason\n" + block_text(reason, is_full ? SIZE_MAX : kShownTextBytes);
  if (const Json messages = member(line, "messages"); messages.is_array())
    return text + messages_text(messages.as_array(), is_full);
  for (const char* key : {"prompt", "completion"})
    text += fmt::format("  {}\n{}", key,
                        block_text(text_member(line, key), is_full ? SIZE_MAX : kShownTextBytes));
  return text;
}

/// Why there is nothing to show.
std::string nothing_text(const FoundRollouts& found, const RolloutsArguments& arguments) {
  std::vector<std::string> ends;
  for (const auto& [end, count] : found.ends)
    ends.push_back(fmt::format("{} {}", count, shown_text(end, 40)));
  const std::string wanted =
      (arguments.end == "any" ? std::string() : " that ended as '" + arguments.end + "'") +
      (arguments.steps.empty() ? "" : " in steps " + arguments.steps);
  return fmt::format("no rollout{}; of those that have ended: {}\n", wanted,
                     ends.empty() ? "none" : fmt::format("{}", fmt::join(ends, ", ")));
}

int run_rollouts(const RolloutsArguments& arguments) {
  auto query = query_of(arguments);
  if (!query.ok()) return fail(query.error(), kExitBadCommandLine);
  const auto folder = run_path(arguments.run);
  if (const auto facts = read_run_facts(folder); !facts.ok())
    return fail(facts.error(), exit_code_of(facts.error()));
  const auto tenants = tenants_of_run(folder);
  if (!tenants.ok()) return fail(tenants.error(), kExitBadConfiguration);
  const auto found = find_rollouts(folder, *tenants, *query);
  if (!found.ok())
    return fail(found.error(),
                found.error().code() == Code::kNotFound ? kExitBadCommandLine : kExitFailed);
  if (arguments.json) {
    print_json(Json::object()
                   .set("schema", "primerl.rollouts/1")
                   .set("folder", folder.string())
                   .set("rollouts", Json(found->rollouts)));
  } else {
    for (size_t i = 0; i < found->rollouts.size(); ++i)
      print_text((i > 0 ? "\n" : "") + rollout_text(found->rollouts[i], arguments.full));
    if (found->rollouts.empty()) complain_text(nothing_text(*found, arguments));
  }
  if (found->num_unreadable > 0)
    complain("warning: {} of the run's rollouts cannot be read: no JSON object\n",
             found->num_unreadable);
  return kExitDone;
}

}  // namespace

Command rollouts_command() {
  auto arguments = std::make_shared<RolloutsArguments>();
  return {"rollouts", "shows what a run's policy was asked and wrote, newest first",
          "primerl-graph rollouts runs/latest --best --steps 10..20",
          [arguments](Arguments& flags) {
            flags.positional(arguments->run, "RUN", "a run folder; default runs/latest", false);
            flags.flag(arguments->best, "--best", "those with the highest rewards first");
            flags.flag(arguments->worst, "--worst", "those with the lowest rewards first");
            flags.integer(arguments->count, "--count", "N",
                          "how many at most, of each tenant unless --best or --worst; default 3", 1,
                          kRolloutsMax);
            flags.text(arguments->tenant, "--tenant", "NAME", "only of this tenant");
            flags.text(arguments->environment, "--environment", "NAME",
                       "only of tenants with this environment");
            flags.text(arguments->steps, "--steps", "RANGE",
                       "only those trained in these steps: 88, 10..20, 10.. or ..20");
            flags.choice(arguments->end, "--end",
                         {"trained", "filtered", "stale", "failed", "cancelled", "evaluated",
                          "any"},
                         "only those that ended so; default trained");
            flags.flag(arguments->full, "--full",
                       "whole texts, where 4000 bytes are shown of each");
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_rollouts(*arguments); }};
}

}  // namespace primerl
