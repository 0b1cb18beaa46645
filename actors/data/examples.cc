#include "actors/data/examples.h"

#include <algorithm>
#include <string_view>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/random.h"
#include "kernels/train/packing.h"

namespace primerl {
namespace {

constexpr size_t kLineBytesMax = size_t{1} << 20;
constexpr size_t kFileBytesMax = size_t{1} << 30;

Result<std::string> text_of(const Json& object, std::string_view key) {
  ASSIGN_OR_RETURN(auto text, object.get_string(key));
  if (text.empty()) return error(Code::kInvalid, "'{}' must not be empty", key);
  return text;
}

/// The weight of an object; 1 if it has none.
Result<float> weight_of(const Json& object) {
  if (object.find("weight") == nullptr) return 1.0F;
  ASSIGN_OR_RETURN(const double weight, object.get_double("weight"));
  if (!(weight >= 0 && weight <= kTokenWeightMax) || (weight > 0 && weight < 1e-6))
    return error(Code::kInvalid, "'weight' is {}, not 0 and not from 1e-6 to {}", weight,
                 kTokenWeightMax);
  return static_cast<float>(weight);
}

/// The messages without their weights, which are no part of a conversation.
Result<Json> take_weights(const Json& messages, std::vector<float>& weights) {
  Json bare = Json::array();
  if (!messages.is_array()) return messages;
  for (const Json& message : messages.as_array()) {
    float weight = 1;
    Json copy = message;
    if (message.is_object() && message.find("weight") != nullptr) {
      auto read = weight_of(message);
      if (!read.ok())
        return std::move(read).error().while_doing(fmt::format("message {}", weights.size()));
      weight = *read;
      copy = Json::object();
      for (const auto& [key, value] : message.as_object())
        if (key != "weight") copy.set(key, value);
    }
    weights.push_back(weight);
    bare.push_back(std::move(copy));
  }
  return bare;
}

Result<DataTurn> parse_turn(const Json& json, bool is_last) {
  DataTurn turn;
  ASSIGN_OR_RETURN(turn.completion, text_of(json, "completion"));
  ASSIGN_OR_RETURN(turn.weight, weight_of(json));
  if (!is_last) {
    ASSIGN_OR_RETURN(turn.observation, text_of(json, "observation"));
  } else if (json.find("observation") != nullptr) {
    return error(Code::kInvalid, "the last turn has an 'observation'")
        .note("an example ends with what the policy says");
  }
  return turn;
}

/// Multiplies the weights by that of the row; only those of answers are kept.
Status weigh(const Json& row, DataExample& example) {
  ASSIGN_OR_RETURN(const float weight, weight_of(row));
  bool trains = false, are_ones = true;
  float largest = 0;
  for (DataTurn& turn : example.turns) {
    turn.weight *= weight;
    largest = std::max(largest, turn.weight);
    trains |= turn.weight > 0;
  }
  for (size_t i = 0; i < example.messages.size(); ++i) {
    float& own = example.weights[i];
    if (example.messages[i].role != "assistant") {
      if (own != 1)
        return error(Code::kInvalid, "message {} has a weight, and its role is '{}'", i,
                     example.messages[i].role)
            .note("only what an assistant says trains");
      continue;
    }
    own *= weight;
    largest = std::max(largest, own);
    are_ones &= own == 1;
    trains |= own > 0;
  }
  if (largest > kTokenWeightMax)
    return error(Code::kInvalid, "the weight of the row times that of an answer is {}, at most {}",
                 largest, kTokenWeightMax);
  if (are_ones) example.weights.clear();
  if (!trains) return error(Code::kInvalid, "all weights are 0, so nothing trains");
  return ok();
}

Result<DataExample> parse_chat(const Json& json) {
  DataExample example;
  for (const std::string_view key : {"prompt", "completion", "turns"})
    if (json.find(key) != nullptr)
      return error(Code::kInvalid, "both 'messages' and '{}'", key).note("give one of them");
  ASSIGN_OR_RETURN(const Json messages, take_weights(*json.find("messages"), example.weights));
  ASSIGN_OR_RETURN(example.messages, messages_from_json(messages));
  const bool has_answer = std::any_of(example.messages.begin(), example.messages.end(),
                                      [](const auto& each) { return each.role == "assistant"; });
  if (!has_answer) return error(Code::kInvalid, "no message is an assistant's, so nothing trains");
  RETURN_IF_ERROR(weigh(json, example));
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
    RETURN_IF_ERROR(weigh(json, example));
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
  RETURN_IF_ERROR(weigh(json, example));
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
