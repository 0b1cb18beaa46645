#include "actors/env/environments/catalog.h"

#include <functional>

#include "actors/env/environments/arithmetic_tool.h"
#include "actors/env/environments/copy.h"
#include "actors/env/environments/reverse_text.h"
#include "graph/base/suggest.h"

namespace primerl {
namespace {

using Made = Result<std::unique_ptr<Environment>>;

Result<std::vector<EnvironmentContract::SampleTask>> tasks_of(Made made, uint64_t seed,
                                                              size_t count) {
  if (!made.ok()) return std::move(made).error();
  std::vector<EnvironmentContract::SampleTask> tasks;
  for (uint64_t ordinal = 0; ordinal < count; ++ordinal) {
    ASSIGN_OR_RETURN(auto task, (*made)->task(ordinal, RandomStream(mix(seed, ordinal))));
    const auto num_turns = static_cast<int64_t>((*made)->demonstration(task).size());
    tasks.push_back({std::move(task.prompt), num_turns});
  }
  return tasks;
}

struct Kind {
  EnvironmentContract contract;
  std::function<Made(const void* options)> make;
};

template <class Options>
Kind kind(std::string name, std::string doc, OptionSet options, Made (*make)(const Options&)) {
  const auto make_bound = [make](const void* bound) {
    return make(bound == nullptr ? Options() : *static_cast<const Options*>(bound));
  };
  const auto first_tasks = [make_bound](const void* bound, uint64_t seed, size_t count) {
    return tasks_of(make_bound(bound), seed, count);
  };
  return {{std::move(name), std::move(doc), std::move(options), first_tasks}, make_bound};
}

template <class O>
OptionsOf<O> letter_options() {
  constexpr std::string O::*letters = &LetterOptions::letters;
  constexpr int32_t O::*length_min = &LetterOptions::length_min;
  constexpr int32_t O::*length_max = &LetterOptions::length_max;
  return OptionsOf<O>()
      .field("letters", letters, any(), "what words are made of, printable ASCII")
      .field("length_min", length_min, between(1, kWordLengthMax) | unit("letters"),
             "of the shortest word")
      .field("length_max", length_max, between(1, kWordLengthMax) | unit("letters"),
             "of the longest word");
}

OptionSet reverse_text_options() {
  return letter_options<ReverseTextOptions>().field(
      "wrong_key_from", &ReverseTextOptions::wrong_key_from, at_least(-1),
      "first task judged by a wrong answer key, to learn finding faults; -1 = none");
}

OptionSet arithmetic_tool_options() {
  using O = ArithmeticToolOptions;
  return OptionsOf<O>()
      .field("operators", &O::operators, any(), "signs to draw from, of '+-*'")
      .field("operand_max", &O::operand_max, between(0, kOperandMax), "largest number in a task")
      .field("turns_max", &O::turns_max, between(2, kToolTurnsMax) | unit("actions"),
             "actions of one trajectory, calls included")
      .field("call_reward", &O::call_reward, from_below(0, 1),
             "reward for the right call with a wrong answer");
}

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kKinds = {
      kind("reverse_text", "write a word backwards, rewarded by the share of right positions",
           reverse_text_options(), make_reverse_text),
      kind("copy", "write a word again, rewarded by the share of right positions",
           letter_options<LetterOptions>(), make_copy),
      kind("arithmetic_tool", "several turns: call a calculator, then answer with its result",
           arithmetic_tool_options(), make_arithmetic_tool),
  };
  return kKinds;
}

}  // namespace

std::vector<EnvironmentContract> environment_contracts() {
  std::vector<EnvironmentContract> contracts;
  for (const Kind& kind : kinds()) contracts.push_back(kind.contract);
  return contracts;
}

Result<std::unique_ptr<Environment>> make_environment(const TenantEnvironment& environment) {
  std::vector<std::string> names;
  for (const Kind& kind : kinds()) {
    if (kind.contract.name == environment.name) {
      auto made = kind.make(environment.options.get());
      if (made.ok()) return made;
      return std::move(made).error().while_doing("environment '" + environment.name + "'");
    }
    names.push_back(kind.contract.name);
  }
  return error(Code::kNotFound, "unknown environment '{}'", environment.name)
      .note("environments: " + join_names(names));
}

}  // namespace primerl
