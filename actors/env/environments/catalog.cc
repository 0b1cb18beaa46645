#include "actors/env/environments/catalog.h"

#include "actors/env/environments/arithmetic_tool.h"
#include "actors/env/environments/copy.h"
#include "actors/env/environments/dataset.h"
#include "actors/env/environments/find_in_pages.h"
#include "actors/env/environments/reverse_text.h"
#include "actors/env/python/verifiers.h"
#include "actors/env/python/workers.h"
#include "graph/base/suggest.h"

namespace primerl {
namespace {

template <class O>
OptionsOf<O> letter_options() {
  constexpr std::string O::*letters = &LetterOptions::letters;
  constexpr int32_t O::*length_min = &LetterOptions::length_min;
  constexpr int32_t O::*length_max = &LetterOptions::length_max;
  return OptionsOf<O>()
      .field("letters", letters, any(), "letters of the words, printable ASCII")
      .field("length_min", length_min, between(1, kWordLengthMax) | unit("letters"),
             "length of the shortest word")
      .field("length_max", length_max, between(1, kWordLengthMax) | unit("letters"),
             "length of the longest word");
}

OptionSet reverse_text_options() {
  return letter_options<ReverseTextOptions>().field(
      "wrong_key_from", &ReverseTextOptions::wrong_key_from, at_least(-1),
      "first task judged by a wrong answer key, for exercises in finding faults; -1 = none");
}

OptionSet arithmetic_tool_options() {
  using O = ArithmeticToolOptions;
  return OptionsOf<O>()
      .field("operators", &O::operators, any(), "operators of the tasks, any of '+-*'")
      .field("operand_max", &O::operand_max, between(0, kOperandMax), "largest number in a task")
      .field("turns_max", &O::turns_max, between(2, kToolTurnsMax) | unit("actions"),
             "actions of one trajectory, calls included")
      .field("call_reward", &O::call_reward, from_below(0, 1),
             "reward for the right call with a wrong answer");
}

OptionSet find_in_pages_options() {
  using O = FindInPagesOptions;
  return OptionsOf<O>()
      .field("pages", &O::pages, between(1, kPagesMax) | unit("pages"), "of one task")
      .field("page_bytes", &O::page_bytes, between(kPageBytesMin, kPageBytesMax) | unit("bytes"),
             "of each page");
}

EnvironmentContract dataset_environment() {
  auto contract = environment_contract("dataset", "the rows of JSONL or CSV files, one task each",
                                       dataset_options(), make_dataset);
  contract.rows = [](const void* options) {
    return dataset_rows(*static_cast<const DatasetOptions*>(options));
  };
  contract.check_field = [](const void* options, const std::string& field) {
    return check_dataset_field(*static_cast<const DatasetOptions*>(options), field);
  };
  return contract;
}

}  // namespace

std::vector<EnvironmentContract> environment_contracts() {
  return {
      environment_contract("reverse_text",
                           "write a word backwards, rewarded by the share of right positions",
                           reverse_text_options(), make_reverse_text),
      environment_contract("copy", "write a word again, rewarded by the share of right positions",
                           OptionSet(letter_options<LetterOptions>()), make_copy),
      environment_contract("arithmetic_tool",
                           "several turns: call a calculator, then answer with its result",
                           arithmetic_tool_options(), make_arithmetic_tool),
      environment_contract("find_in_pages",
                           "many turns: read pages until one has the number that the task asks for",
                           find_in_pages_options(), make_find_in_pages),
      dataset_environment(),
      process_environment(),
      python_environment(),
      gymnasium_environment(),
      skyrl_gym_environment(),
      mcp_environment(),
      verifiers_environment(),
  };
}

Result<std::unique_ptr<Environment>> make_environment(const TenantEnvironment& environment) {
  std::vector<std::string> names;
  const std::vector<EnvironmentContract> known = environment_contracts();
  const EnvironmentContract* contract = environment.contract;
  for (const EnvironmentContract& each : known) {
    if (contract == nullptr && each.name == environment.name) contract = &each;
    names.push_back(each.name);
  }
  if (contract == nullptr)
    return error(Code::kNotFound, "unknown environment '{}'", environment.name)
        .note("environments: " + join_names(names));
  auto made = contract->make(environment.options.get());
  if (made.ok()) return made;
  return std::move(made).error().while_doing("environment '" + environment.name + "'");
}

}  // namespace primerl
