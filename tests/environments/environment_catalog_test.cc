#include "actors/env/environments/catalog.h"

#include <gmock/gmock.h>

#include "actors/env/environments/letters.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// Those that need no file and no process.
std::vector<EnvironmentContract> self_contained() {
  auto contracts = environment_contracts();
  std::erase_if(contracts, [](const EnvironmentContract& contract) {
    return contract.outside || contract.options.find("file") != nullptr;
  });
  EXPECT_EQ(contracts.size(), 4U);
  return contracts;
}

TEST(EnvironmentCatalog, NamesTheKnownOnesWhenAskedForAnother) {
  const auto made = make_environment({.name = "reverse_txt", .options = nullptr});
  EXPECT_THAT(made.error().text(), HasSubstr("unknown environment 'reverse_txt'"));
  EXPECT_THAT(made.error().text(),
              HasSubstr("reverse_text, copy, arithmetic_tool, find_in_pages, dataset, process, "
                        "python, gymnasium, skyrl_gym, mcp and verifiers"));
}

TEST(EnvironmentCatalog, MakesEveryEnvironmentWithItsDefaultsAndItsRewardsStayInRange) {
  for (const auto& contract : self_contained()) {
    SCOPED_TRACE(contract.name);
    EXPECT_FALSE(contract.doc.empty());
    const auto options = contract.options.make();
    auto environment = make_environment({contract.name, options});
    ASSERT_TRUE(environment.ok()) << environment.error().text();
    for (uint64_t ordinal = 0; ordinal < 50; ++ordinal) {
      const auto task = *(*environment)->task(ordinal, RandomStream(ordinal));
      EXPECT_FALSE(task.prompt.empty());
      for (const std::string& action :
           {std::string(), task.answer, task.prompt, std::string(999, 'a')}) {
        const auto step = *(*environment)->step(task, {action});
        EXPECT_GE(step.reward, 0);
        EXPECT_LE(step.reward, 1);
        EXPECT_EQ(step.done, step.text.empty());
      }
    }
  }
}

TEST(EnvironmentCatalog, EveryDemonstrationEarnsTheWholeReward) {
  for (const auto& contract : self_contained()) {
    SCOPED_TRACE(contract.name);
    auto environment = *make_environment({contract.name, contract.options.make()});
    for (uint64_t ordinal = 0; ordinal < 50; ++ordinal) {
      const auto task = *environment->task(ordinal, RandomStream(ordinal));
      const auto said = environment->demonstration(task);
      ASSERT_FALSE(said.empty());
      std::vector<std::string> actions;
      for (const auto& action : said) {
        actions.push_back(action);
        const auto step = *environment->step(task, actions);
        ASSERT_EQ(step.done, actions.size() == said.size()) << task.prompt;
        EXPECT_EQ(step.reward, step.done ? 1 : 0) << task.prompt;
      }
    }
  }
}

TEST(EnvironmentCatalog, AnEnvironmentOutsideHasNoCodeHere) {
  EXPECT_THAT(make_environment({"process", nullptr}).error().text(),
              HasSubstr("environment 'process': it runs outside of the process"));
}

TEST(EnvironmentCatalog, PassesTheBoundOptions) {
  const auto options = std::make_shared<LetterOptions>(LetterOptions{.letters = "z"});
  const auto environment = make_environment({"copy", options});
  EXPECT_EQ((*environment)->task(0, RandomStream(0))->answer, "zzzzzzzz");
  options->letters = "";
  EXPECT_THAT(make_environment({"copy", options}).error().text(),
              HasSubstr("environment 'copy': 'letters' is empty"));
}

}  // namespace
}  // namespace primerl
