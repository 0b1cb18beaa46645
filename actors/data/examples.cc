#include "actors/data/examples.h"

#include <algorithm>
#include <string_view>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr size_t kLineBytesMax = size_t{1} << 20;
constexpr size_t kFileBytesMax = size_t{1} << 30;

Result<std::string> text_of(const Json& object, std::string_view key) {
  ASSIGN_OR_RETURN(auto text, object.get_string(key));
  if (text.empty()) return error(Code::kInvalid, "'{}' must not be empty", key);
  return text;
}

Result<DataTurn> parse_turn(const Json& json, bool is_last) {
  DataTurn turn;
  ASSIGN_OR_RETURN(turn.completion, text_of(json, "completion"));
  if (!is_last) {
    ASSIGN_OR_RETURN(turn.observation, text_of(json, "observation"));
  } else if (json.find("observation") != nullptr) {
    return error(Code::kInvalid, "the last turn has an 'observation'")
        .note("an example ends with what the policy says");
  }
  return turn;
}

Result<DataExample> parse_chat(const Json& json) {
  DataExample example;
  for (const std::string_view key : {"prompt", "completion", "turns"})
    if (json.find(key) != nullptr)
      return error(Code::kInvalid, "both 'messages' and '{}'", key).note("give one of them");
  ASSIGN_OR_RETURN(example.messages, messages_from_json(*json.find("messages")));
  const bool has_answer = std::any_of(example.messages.begin(), example.messages.end(),
                                      [](const auto& each) { return each.role == "assistant"; });
  if (!has_answer) return error(Code::kInvalid, "no message is an assistant's, so nothing trains");
  if (const Json* tools = json.find("tools"); tools != nullptr && !tools->is_null()) {
    RETURN_IF_ERROR(check_tools(*tools));
    example.tools = tools->dump();
  }
  return example;
}

Result<DataExample> parse_example(const Json& json) {
  if (json.find("messages") != nullptr) return parse_chat(json);
  DataExample example;
  ASSIGN_OR_RETURN(example.prompt, text_of(json, "prompt"));
  const Json* turns = json.find("turns");
  if (turns == nullptr) {
    ASSIGN_OR_RETURN(auto completion, text_of(json, "completion"));
    example.turns.push_back({std::move(completion), ""});
    return example;
  }
  if (json.find("completion") != nullptr)
    return error(Code::kInvalid, "both 'completion' and 'turns'").note("give one of them");
  if (!turns->is_array() || turns->as_array().empty())
    return error(Code::kInvalid, "'turns' is not a list of at least one turn");
  const auto& all = turns->as_array();
  for (size_t i = 0; i < all.size(); ++i) {
    auto turn = parse_turn(all[i], i + 1 == all.size());
    if (!turn.ok()) return std::move(turn).error().while_doing(fmt::format("turn {}", i + 1));
    example.turns.push_back(std::move(*turn));
  }
  return example;
}

Result<DataExample> parse_line(std::string_view line, const std::string& what) {
  ASSIGN_OR_RETURN(const Json json, parse_json(line, what));
  auto example = parse_example(json);
  if (example.ok()) return example;
  return std::move(example).error().while_doing(what);
}

}  // namespace

Result<std::vector<DataExample>> read_examples(const std::string& file, int64_t examples_max) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kFileBytesMax));
  std::vector<DataExample> examples;
  size_t begin = 0;
  for (int64_t number = 1; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line(text.data() + begin, end - begin);
    begin = end + 1;
    if (line.empty()) continue;
    const std::string what = fmt::format("{}:{}", file, number);
    if (line.size() > kLineBytesMax)
      return error(Code::kExhausted, "{}: the line has {} bytes, at most {} are allowed", what,
                   line.size(), kLineBytesMax);
    if (static_cast<int64_t>(examples.size()) == examples_max)
      return error(Code::kExhausted, "{}: more than {} examples", what, examples_max)
          .note("raise 'examples_max'");
    ASSIGN_OR_RETURN(auto example, parse_line(line, what));
    example.line = number;
    examples.push_back(std::move(example));
  }
  if (examples.empty()) return error(Code::kInvalid, "'{}' has no examples", file);
  return examples;
}

uint64_t shuffled_index(uint64_t index, uint64_t count, uint64_t key) {
  const uint64_t pass_key = mix(key, index / count);
  // A Feistel network over the next even power of two is a permutation. Applying it until the value
  // is in range gives a permutation of [0, count).
  int half_bits = 1;
  while ((uint64_t{1} << (2 * half_bits)) < count) ++half_bits;
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  uint64_t value = index % count;
  do {
    uint64_t left = value >> half_bits;
    uint64_t right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t next = left ^ (mix(mix(pass_key, round), right) & mask);
      left = right;
      right = next;
    }
    value = (left << half_bits) | right;
  } while (value >= count);
  return value;
}

Result<DataExample> demonstrate(Environment& environment, const EnvironmentTask& task,
                                int64_t turns_max) {
  const auto said = environment.demonstration(task);
  if (said.empty())
    return error(Code::kInvalid, "the environment demonstrates nothing")
        .note("give 'file' instead");
  if (static_cast<int64_t>(said.size()) > turns_max)
    return error(Code::kInvalid, "a demonstration has {} turns, turns_max is {}", said.size(),
                 turns_max);
  DataExample example;
  example.prompt = task.prompt;
  std::vector<std::string> actions;
  for (const auto& action : said) {
    actions.push_back(action);
    ASSIGN_OR_RETURN(auto step, environment.step(task, actions));
    const bool is_last = actions.size() == said.size();
    if (step.done != is_last)
      return error(Code::kInvalid, "a demonstration of {} turns {} turn {}", said.size(),
                   step.done ? "ends with" : "continues after", actions.size());
    example.turns.push_back({action, is_last ? "" : std::move(step.text)});
  }
  return example;
}

}  // namespace primerl
