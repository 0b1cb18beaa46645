// An Env node whose tenant has several environments, and one with a curriculum.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "actors/env/env.h"
#include "actors/env/reward.h"
#include "graph/catalog.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

/// Task n of environment "a" is "a n"; its reward is a fixed number.
class Named final : public Environment {
 public:
  Named(std::string name, double reward) : name_(std::move(name)), reward_(reward) {}
  Result<EnvironmentTask> task(uint64_t ordinal, RandomStream) override {
    return EnvironmentTask{fmt::format("{} {}", name_, ordinal), ""};
  }
  Result<EnvironmentStep> step(const EnvironmentTask& task,
                               const std::vector<std::string>&) override {
    judged.push_back(task.prompt);
    return EnvironmentStep{"", reward_, true};
  }
  std::vector<std::string> judged;

 private:
  const std::string name_;
  const double reward_;
};

std::shared_ptr<Tenant> a_part(const std::string& label, int64_t weight) {
  auto part = std::make_shared<Tenant>(testing::a_tenant());
  part->label = label;
  part->weight = weight;
  part->environment.name = label;
  return part;
}

Tenant a_mix_of_names() {
  Tenant tenant = testing::a_tenant();
  tenant.mix = {a_part("a", 3), a_part("b", 1)};
  return tenant;
}

struct MixedEnv : ::testing::Test {
  explicit MixedEnv(Tenant of = a_mix_of_names()) : tenant(std::move(of)) { begin(); }
  void begin() {
    std::vector<std::unique_ptr<Environment>> environments;
    for (const char* name : {"a", "b"}) {
      auto made = std::make_unique<Named>(name, name[0] == 'a' ? 0.25 : 0.75);
      (name[0] == 'a' ? a : b) = made.get();
      environments.push_back(std::move(made));
    }
    env = std::make_unique<NodeRunner<Env>>(
        EnvOptions(), std::make_unique<Env>(EnvOptions(), std::move(environments)));
    env->set_tenants({tenant});
    env->set_room("task", 1000);
  }
  std::vector<Task> tasks(size_t count) {
    std::vector<Task> all;
    while (all.size() < count) {
      EXPECT_TRUE(env->run_work().ok());
      for (auto& task : env->take<Task>("task")) all.push_back(std::move(task));
    }
    return all;
  }
  Observation judge(const Task& task) {
    Action action;
    action.trajectory = next_trajectory++;
    action.ordinal = task.ordinal;
    action.texts = {"an answer"};
    action.source = task.source;
    (void)env->give("action", action);
    const auto said = env->take<Observation>("observation");
    return said.empty() ? Observation() : said.front();
  }
  /// Reports to the curriculum how groups of these tasks ended.
  Observation score(const std::vector<std::pair<Task, double>>& groups) {
    Action action;
    action.trajectory = UINT64_MAX;
    action.turn = kBringsScores;
    for (const auto& [task, reward] : groups) action.scored.push_back({task.source, reward});
    EXPECT_TRUE(env->give("action", action).ok());
    const auto said = env->take<Observation>("observation");
    EXPECT_THAT(said, SizeIs(1));
    return said.empty() ? Observation() : said.front();
  }

  Tenant tenant;
  Named* a = nullptr;
  Named* b = nullptr;
  std::unique_ptr<NodeRunner<Env>> env;
  uint64_t next_trajectory = 1;
};

TEST_F(MixedEnv, GivesTasksOfEachEnvironmentByItsWeightAndWithoutGaps) {
  std::map<uint32_t, uint64_t> next;
  for (const Task& task : tasks(40)) {
    EXPECT_EQ(task.source.number, next[task.source.environment]++);
    EXPECT_EQ(task.prompt,
              fmt::format("{} {}", task.source.environment == 0 ? "a" : "b", task.source.number));
  }
  EXPECT_EQ(next[0], 30U);
  EXPECT_EQ(next[1], 10U);
}

TEST_F(MixedEnv, JudgesAnActionInTheEnvironmentOfItsTask) {
  for (const Task& task : tasks(4)) {
    const bool is_a = task.source.environment == 0;
    EXPECT_EQ(judge(task).reward, is_a ? 0.25 : 0.75);
    EXPECT_EQ((is_a ? a : b)->judged.back(), task.prompt);
  }
  EXPECT_THAT(a->judged, SizeIs(3));
  EXPECT_THAT(b->judged, SizeIs(1));
}

TEST_F(MixedEnv, RefusesAnEnvironmentThatTheTenantLacks) {
  Task task = tasks(1).front();
  task.source.environment = 2;
  EXPECT_THAT(judge(task).fault, HasSubstr("environment 2 of tenant 'main', which has 2"));
}

TEST_F(MixedEnv, AResumedRunGivesTheOrdinalsThatAreMissingFromTheSameEnvironments) {
  const auto all = tasks(20);
  begin();
  ResumePoint point;
  point.version = PolicyVersion(1);
  OrdinalSet consumed;
  for (const uint64_t ordinal : {0, 1, 3, 4, 5}) consumed.add(ordinal);
  point.manifest = Json::object().set("consumed", consumed.to_json()).set("resumes", int64_t{0});
  env->set_resume_point(TenantSlot(0), point);
  const auto resumed = tasks(15);
  for (const Task& task : resumed) {
    EXPECT_EQ(task.prompt, all[task.ordinal].prompt);
    EXPECT_EQ(task.source, all[task.ordinal].source);
  }
  EXPECT_EQ(resumed[0].ordinal, 2U);
  EXPECT_EQ(resumed[1].ordinal, 6U);
}

/// One environment of eight tasks with a curriculum.
struct EnvWithACurriculum : MixedEnv {
  static Tenant of_tenant() {
    Tenant tenant = testing::a_tenant();
    tenant.environment.name = "a";
    tenant.curriculum.rows = 8;
    tenant.curriculum.easy_threshold = 1;
    return tenant;
  }
  EnvWithACurriculum() : MixedEnv(of_tenant()) {}
  static std::vector<uint64_t> rows_of(const std::vector<Task>& tasks) {
    std::vector<uint64_t> rows;
    for (const Task& task : tasks) rows.push_back(task.source.row);
    return rows;
  }
};

TEST_F(EnvWithACurriculum, GivesEachRowOnceInAPassAndNoneThatHasLeft) {
  auto first = tasks(8);
  auto rows = rows_of(first);
  std::ranges::sort(rows);
  EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  for (const Task& task : first) EXPECT_EQ(task.source.number, task.source.row);
  const auto seen = score({{first[0], 1.0}, {first[1], 0.5}});
  EXPECT_EQ(seen.turn, kBringsScores);
  EXPECT_EQ(seen.fault, "");
  const auto later = rows_of(tasks(14));
  EXPECT_THAT(later, Not(Contains(first[0].source.row)));
  EXPECT_THAT(later, Contains(first[1].source.row));
}

TEST_F(EnvWithACurriculum, AGroupWithoutARewardChangesNoPool) {
  const auto first = tasks(1);
  const auto seen = score({{first[0], std::numeric_limits<double>::quiet_NaN()}});
  EXPECT_EQ(seen.fault, "");
  EXPECT_THAT(rows_of(tasks(14)), Contains(first[0].source.row)) << "it is given again";
}

TEST_F(EnvWithACurriculum, ChoosesFewTasksBeforeTheyAreNeeded) {
  const auto with_room = [&](int64_t space) {
    env->set_room("task", space);
    EXPECT_TRUE(env->run_work().ok());
    return env->take<Task>("task").size();
  };
  EXPECT_EQ(with_room(64), 1U);
  EXPECT_EQ(with_room(61), 1U) << "three wait";
  EXPECT_EQ(with_room(60), 0U) << "four wait";
  EXPECT_EQ(with_room(61), 1U);
}

TEST_F(MixedEnv, WithoutACurriculumFillsTheEdge) {
  env->set_room("task", 64);
  EXPECT_EQ(tasks(1).size(), 1U);
  env->set_room("task", 1);
  EXPECT_EQ(tasks(1).size(), 1U);
}

TEST_F(EnvWithACurriculum, SaysOnceThatAllRowsHaveLeftAndGivesThemAgain) {
  std::vector<std::pair<Task, double>> all;
  for (const Task& task : tasks(8)) all.emplace_back(task, 1.0);
  score(all);
  auto rows = rows_of(tasks(8));
  std::ranges::sort(rows);
  EXPECT_THAT(rows, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  (void)tasks(8);
  EXPECT_EQ(env->counter("curriculum_exhausted"), 1);
}

TEST_F(EnvWithACurriculum, ContinuesFromTheRowsOfACheckpoint) {
  (void)tasks(3);
  RowPools pools;
  pools.add(tenant.curriculum, 5, 1.0);
  Json saved = pools.to_json(tenant.curriculum);
  saved.set("next", int64_t{3}).set("stage", int64_t{0});
  begin();
  ResumePoint point;
  point.version = PolicyVersion(1);
  point.manifest = Json::object()
                       .set("consumed", OrdinalSet().to_json())
                       .set("resumes", int64_t{0})
                       .set(kCurricula, Json::object().set("a", saved));
  env->set_resume_point(TenantSlot(0), point);
  const auto resumed = tasks(14);
  EXPECT_GE(resumed.front().source.position, 3U);
  EXPECT_THAT(rows_of(resumed), Not(Contains(5)));
}

TEST_F(EnvWithACurriculum, StagesWithoutAnyRowAreAnError) {
  tenant.curriculum.stages = {{-2, 0.5, 8}, {-1, 0.5, 8}};
  begin();
  const auto worked = env->run_work();
  ASSERT_FALSE(worked.ok());
  EXPECT_THAT(worked.error().text(),
              HasSubstr("no stage of the curriculum of 'a' has a row: each of the 8 has more "
                        "than -1"));
}

TEST_F(EnvWithACurriculum, ScoresOfAnEnvironmentWithoutOneAreAnError) {
  Tenant plain = a_mix_of_names();
  tenant = plain;
  begin();
  const Task task = tasks(1).front();
  Action action;
  action.turn = kBringsScores;
  action.scored = {{task.source, 1.0}};
  (void)env->give("action", action);
  const auto said = env->take<Observation>("observation");
  ASSERT_THAT(said, SizeIs(1)) << "the scores are answered, so that others may follow";
  EXPECT_THAT(said[0].fault, HasSubstr("which has no curriculum"));
}

}  // namespace
}  // namespace primerl
