#include "runtime/control/changed_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kGraph = R"([tenant.main]
max_steps = 8
filters = { zero_advantage = false }
[resource.learner]
optimizer = { kind = "adamw", lr = 2e-4 }
[edges]
forward = [
  { path = "env.task -> rollout.task", capacity = 64 },
]
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

std::vector<ChangedValue> changes(const std::string& now) {
  const auto changed = changed_values(kGraph, now);
  EXPECT_TRUE(changed.ok()) << changed.error().text();
  return changed.ok() ? *changed : std::vector<ChangedValue>();
}

TEST(ChangedValues, NameTheKeyAndBothValues) {
  EXPECT_THAT(changes(kGraph), IsEmpty());
  EXPECT_THAT(changes(replaced(kGraph, "max_steps = 8", "max_steps = 9")),
              ElementsAre(ChangedValue{"tenant.main.max_steps", "8", "9"}));
  EXPECT_THAT(changes(replaced(kGraph, "\"adamw\"", "\"sgd\"")),
              ElementsAre(ChangedValue{"resource.learner.optimizer.kind", "\"adamw\"", "\"sgd\""}));
}

TEST(ChangedValues, NameTheEdge) {
  EXPECT_THAT(
      changes(replaced(kGraph, "capacity = 64", "capacity = 65")),
      ElementsAre(ChangedValue{"edges.forward.env.task -> rollout.task.capacity", "64", "65"}));
}

TEST(ChangedValues, TellWhatIsWrittenOnOneSideOnly) {
  EXPECT_THAT(changes(replaced(kGraph, "max_steps = 8", "seed = 3")),
              ElementsAre(ChangedValue{"tenant.main.max_steps", "8", ""},
                          ChangedValue{"tenant.main.seed", "", "3"}));
}

TEST(ChangedValues, AreNoMoreThanTheirLimit) {
  std::string many = kGraph;
  for (size_t i = 0; i <= kChangedValuesMax; ++i) many += fmt::format("[node.n{}]\nx = 1\n", i);
  EXPECT_THAT(changes(many), SizeIs(kChangedValuesMax));
}

TEST(ChangedValues, RefuseWhatIsNoToml) {
  EXPECT_EQ(changed_values("[", kGraph).error().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace primerl
