// Groups of a tenant with several environments: each has the limits of its own.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tests/actors/rollout_story.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// "short" samples 3 tokens in one turn, "long" 8 in up to two.
Tenant a_mix_to_play() {
  Tenant tenant = testing::a_tenant();
  auto brief = std::make_shared<Tenant>(tenant);
  brief->label = "short";
  brief->environment.name = "copy";
  brief->sampling.max_tokens = 3;
  brief->turns_max = 1;
  brief->rollout_timeout = Duration::seconds(5);
  auto wide = std::make_shared<Tenant>(tenant);
  wide->label = "long";
  wide->environment.name = "copy";
  wide->sampling.temperature = 0.5;
  wide->turns_max = 2;
  tenant.mix = {brief, wide};
  return tenant;
}

struct MixedRollout : testing::RolloutStory {
  explicit MixedRollout(Tenant tenant = a_mix_to_play(), int64_t max_inflight = 64)
      : RolloutStory({.model = "", .max_inflight = max_inflight}, std::move(tenant)) {}
  void task_of(uint64_t ordinal, uint32_t environment, uint64_t row = 0) {
    Task task{ordinal, "ab"};
    task.source = {.environment = environment, .number = ordinal, .row = row};
    ASSERT_TRUE(rollout.give("task", task, Given{.sender = kEnvironment}).ok());
  }
};

TEST_F(MixedRollout, AGroupHasTheSamplingAndTheTurnsOfItsEnvironment) {
  live(0);
  task_of(0, 0);
  const auto brief = requests();
  ASSERT_THAT(brief, SizeIs(2));
  EXPECT_EQ(brief[0].sampling.max_tokens, 3);
  EXPECT_EQ(brief[0].sampling.temperature, 1.0F);
  task_of(1, 1);
  const auto wide = requests();
  ASSERT_THAT(wide, SizeIs(2));
  EXPECT_EQ(wide[0].sampling.max_tokens, 8);
  EXPECT_EQ(wide[0].sampling.temperature, 0.5F);
  complete(brief[0]);
  const auto first = actions();
  ASSERT_THAT(first, SizeIs(1));
  EXPECT_EQ(first[0].source.environment, 0U);
  observe(first[0], 0, false, "more");
  EXPECT_THAT(requests(), IsEmpty()) << "its only turn was played";
  complete(wide[0]);
  const auto second = actions();
  EXPECT_EQ(second[0].source.environment, 1U);
  EXPECT_EQ(second[0].source.number, 1U);
  observe(second[0], 0, false, "m");
  EXPECT_THAT(requests(), SizeIs(1)) << "a second turn follows";
}

TEST_F(MixedRollout, ItsGroupsAndLinesNameTheEnvironment) {
  live(0);
  task_of(0, 1);
  play(requests());
  const auto made = groups();
  ASSERT_THAT(made, SizeIs(1));
  EXPECT_EQ(made[0].source.environment, 1U);
  end(made[0], RolloutEnd::kTrained, 1);
  for (const Json& line : ends()) EXPECT_EQ(*line.get_string("environment"), "long");
}

TEST_F(MixedRollout, TheTimeLimitIsThatOfTheEnvironment) {
  live(0);
  task_of(0, 0);
  task_of(1, 1);
  (void)requests();
  ASSERT_TRUE(rollout.advance(Duration::seconds(6)).ok());
  const auto made = groups();
  ASSERT_THAT(made, SizeIs(1)) << "the other has two minutes";
  EXPECT_EQ(made[0].source.environment, 0U);
  EXPECT_THAT(made[0].members[0].fault, HasSubstr("not done within 5s"));
}

TEST_F(MixedRollout, RefusesATaskOfAnEnvironmentThatTheTenantLacks) {
  Task task{0, "ab"};
  task.source.environment = 2;
  EXPECT_FALSE(rollout.give("task", task).ok());
}

Tenant a_mix_to_measure() {
  Tenant tenant = a_mix_to_play();
  tenant.eval = {.interval = 1, .samples = 2, .rows = 3};
  const auto with_rows = [&](size_t index, int64_t rows) {
    auto own = std::make_shared<Tenant>(tenant.in_environment(index));
    own->eval = {.interval = 1, .samples = 2, .rows = rows};
    tenant.mix[index] = own;
  };
  with_rows(0, 1);
  with_rows(1, 2);
  return tenant;
}

struct MeasuredMix : MixedRollout {
  MeasuredMix() : MixedRollout(a_mix_to_measure()) {}
};

TEST_F(MeasuredMix, EachEnvironmentHasALineOfItsOwn) {
  live(0);
  std::vector<Action> asked, played;
  const auto sort = [&] {
    for (const Action& action : actions())
      (action.turn == kAsksTask ? asked : played).push_back(action);
  };
  for (size_t row = 0; row < 3; ++row) {
    sort();
    ASSERT_GT(asked.size(), row);
    EXPECT_EQ(asked[row].source.environment, row == 0 ? 0U : 1U);
    observe(asked[row], 0, false, "xy");
    const auto made = requests();
    ASSERT_THAT(made, SizeIs(2));
    EXPECT_EQ(made[0].sampling.max_tokens, row == 0 ? 3 : 8);
    for (const auto& request : made) complete(request);
    sort();
    for (const Action& action : std::exchange(played, {}))
      observe(action, static_cast<double>(row));
    ASSERT_TRUE(rollout.advance(Duration()).ok());
  }
  std::vector<std::string> lines;
  for (const auto& text : rollout.lines("evaluations.jsonl")) {
    const Json line = *parse_json(text, "evaluations.jsonl");
    lines.push_back(fmt::format("{} {} {}", *line.get_string("environment"), *line.get_int("rows"),
                                *line.get_double("reward")));
  }
  EXPECT_THAT(lines, ElementsAre("short 1 0", "long 2 1.5"));
}

Tenant a_mix_with_scores() {
  Tenant tenant = a_mix_to_play();
  auto own = std::make_shared<Tenant>(tenant.in_environment(1));
  own->curriculum.rows = 10;
  own->curriculum.easy_threshold = 1;
  tenant.mix[1] = own;
  return tenant;
}

struct RolloutWithACurriculum : MixedRollout {
  explicit RolloutWithACurriculum(int64_t max_inflight = 64)
      : MixedRollout(a_mix_with_scores(), max_inflight) {}
  static std::vector<Action> scores_in(const std::vector<Action>& actions) {
    std::vector<Action> scores;
    std::ranges::copy_if(actions, std::back_inserter(scores),
                         [](const Action& action) { return action.turn == kBringsScores; });
    return scores;
  }
};

TEST_F(RolloutWithACurriculum, SendsTheMeanOfEachGroupOnceAndOneAtATime) {
  live(0);
  task_of(0, 1, 7);
  play(requests());
  const auto first = scores_in(actions());
  ASSERT_THAT(first, SizeIs(1));
  ASSERT_THAT(first[0].scored, SizeIs(1));
  EXPECT_EQ(first[0].scored[0].source.row, 7U);
  EXPECT_EQ(first[0].scored[0].reward, 0.5) << "the mean of 0 and 1";
  task_of(1, 1, 8);
  play(requests());
  task_of(2, 1, 9);
  play(requests());
  EXPECT_THAT(scores_in(actions()), IsEmpty()) << "the first is not answered yet";
  observe(first[0], 0, false);
  const auto second = scores_in(actions());
  ASSERT_THAT(second, SizeIs(1));
  ASSERT_THAT(second[0].scored, SizeIs(2));
  EXPECT_EQ(second[0].scored[1].source.row, 9U);
  observe(second[0], 0, false);
  EXPECT_THAT(actions(), IsEmpty());
  task_of(3, 0);
  play(requests());
  const auto other = scores_in(actions());
  ASSERT_THAT(other, SizeIs(1));
  EXPECT_TRUE(std::isnan(other[0].scored[0].reward)) << "this environment has no curriculum";
}

TEST_F(RolloutWithACurriculum, AFailedMemberDoesNotCountAndAFailedGroupHasNoReward) {
  live(0);
  task_of(0, 1, 7);
  auto made = requests();
  complete(made[0]);
  end_without_tokens(made[1], FinishReason::kRefused);
  observe(actions().front(), 1);
  const auto sent = scores_in(actions());
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].scored[0].reward, 1);
  observe(sent[0], 0, false);
  task_of(1, 1, 8);
  made = requests();
  for (const auto& request : made) end_without_tokens(request, FinishReason::kRefused);
  const auto failed = scores_in(actions());
  ASSERT_THAT(failed, SizeIs(1)) << "no other action says that the task was used";
  ASSERT_THAT(failed[0].scored, SizeIs(1));
  EXPECT_TRUE(std::isnan(failed[0].scored[0].reward));
}

TEST_F(RolloutWithACurriculum, SendsThemAgainIfTheirEnvironmentIsLost) {
  live(0);
  task_of(0, 1, 7);
  play(requests());
  ASSERT_THAT(scores_in(actions()), SizeIs(1));
  rollout.set_targets("action", {});
  ASSERT_TRUE(rollout.peer({PeerEvent::Kind::kDown, kEnvironment, 1}).ok());
  EXPECT_THAT(actions(), IsEmpty());
  rollout.set_targets("action", {kEnvironment});
  task_of(1, 0);
  const auto again = scores_in(actions());
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_EQ(again[0].scored[0].source.row, 7U);
}

struct NarrowCurriculum : RolloutWithACurriculum {
  NarrowCurriculum() : RolloutWithACurriculum(2) {}
};

/// The edge has no space for more actions than rollouts may be in flight.
TEST_F(NarrowCurriculum, CountsTheAnswerAsARolloutInFlight) {
  live(0);
  task_of(0, 1, 7);
  task_of(1, 1, 8);
  play(requests());
  const auto sent = scores_in(actions());
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_THAT(requests(), IsEmpty()) << "a group of two does not fit beside it";
  observe(sent[0], 0, false);
  EXPECT_THAT(requests(), SizeIs(2));
}

}  // namespace
}  // namespace primerl
