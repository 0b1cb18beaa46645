// Each alarm at its bound and one past it, on series that the test makes.
#include "runtime/monitor/run_alarms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "runtime/monitor/metrics_log.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A run whose steps come one after the other.
class Series {
 public:
  explicit Series(const AlarmSettings& bounds = {}) : alarms_(bounds) {}

  /// `count` steps with the same values; the changes as "+name@step" and "-name@step".
  std::vector<std::string> steps(int count, const MetricValues& values) {
    std::vector<std::string> seen;
    for (int i = 0; i < count; ++i) {
      ++step_;
      for (const AlarmChange& change : alarms_.add("main", step_, step_, values))
        seen.push_back(text_of(change));
    }
    return seen;
  }
  std::vector<std::string> waiting(double filtered, double groups) {
    std::vector<std::string> seen;
    for (const AlarmChange& change :
         alarms_.add("main", step_, step_,
                     {{"waiting/groups_filtered", filtered}, {"waiting/groups", groups}}))
      seen.push_back(text_of(change));
    return seen;
  }
  std::vector<AlarmChange> raised() const { return alarms_.raised("main"); }

 private:
  static std::string text_of(const AlarmChange& change) {
    return fmt::format("{}{}@{}", change.is_raised ? "+" : "-", to_string(change.kind),
                       change.step);
  }

  RunAlarms alarms_;
  int step_ = 0;
};

MetricValues entropy(double value) { return {{"loss/mean", 0}, {"entropy/all/mean", value}}; }
MetricValues mismatch(double value) { return {{"mismatch_kl/all/mean", value}}; }
MetricValues effective(double value) { return {{"effective_size/all/mean", value}}; }
MetricValues filtered(double count) {
  return {{"progress/groups_filtered", count}, {"progress/groups", 8}};
}

TEST(RunAlarms, EntropyCollapsesBelowTwoPercentOfTheFirstSteps) {
  Series at_bound;
  at_bound.steps(10, entropy(100));
  EXPECT_THAT(at_bound.steps(20, entropy(2)), IsEmpty());
  Series past;
  past.steps(10, entropy(100));
  EXPECT_THAT(past.steps(20, entropy(1.99)), ElementsAre("+entropy_collapse@20"));
  EXPECT_THAT(past.raised().front().text,
              HasSubstr("is 1.99 nats, 2% of that of the first 10 (100)"));
  EXPECT_THAT(past.raised().front().advice(), HasSubstr("sampling.temperature"));
}

TEST(RunAlarms, AnAlarmEndsAtABoundOfItsOwn) {
  Series series;
  series.steps(10, entropy(100));
  EXPECT_THAT(series.steps(10, entropy(1)), ElementsAre("+entropy_collapse@20"));
  EXPECT_THAT(series.steps(30, entropy(4)), IsEmpty());  // 4%: raised below 2%, so it stays
  EXPECT_THAT(series.steps(30, entropy(4.01)), ElementsAre("-entropy_collapse@51"));
  EXPECT_THAT(series.raised(), IsEmpty());
}

TEST(RunAlarms, OneNoisyStepRaisesNothing) {
  Series series;
  series.steps(20, mismatch(0.001));
  EXPECT_THAT(series.steps(1, mismatch(0.19)), IsEmpty());  // the mean of ten is 0.0199
  EXPECT_THAT(series.steps(1, mismatch(0.003)), ElementsAre("+mismatch_kl@22"));
}

TEST(RunAlarms, MismatchIsComparedWithTheFirstStepsWithinLimits) {
  for (const auto& [first, bound] : {std::pair{0.0, 0.02}, {0.01, 0.05}, {0.02, 0.1}, {1.0, 0.1}}) {
    Series at_bound;
    at_bound.steps(10, mismatch(first));
    at_bound.steps(10, mismatch(bound * 0.4));  // ends the alarm of a high beginning
    EXPECT_THAT(at_bound.steps(20, mismatch(bound * 0.999)), IsEmpty()) << first;
    EXPECT_THAT(at_bound.steps(20, mismatch(bound * 1.001)), testing::SizeIs(1)) << first;
    EXPECT_THAT(at_bound.steps(20, mismatch(bound * 0.501)), IsEmpty()) << first;
    EXPECT_THAT(at_bound.steps(20, mismatch(bound * 0.499)), testing::SizeIs(1)) << first;
  }
}

TEST(RunAlarms, HalfOfTheBatchMustCount) {
  Series series;
  EXPECT_THAT(series.steps(20, effective(0.5)), IsEmpty());
  EXPECT_THAT(series.steps(20, effective(0.499)), ElementsAre("+effective_size@21"));
  EXPECT_THAT(series.steps(20, effective(0.6)), IsEmpty());
  EXPECT_THAT(series.steps(20, effective(0.601)), ElementsAre("-effective_size@61"));
}

TEST(RunAlarms, FilteredBatchesAreCountedAtTheStepAndWhileNoneComes) {
  Series series;
  EXPECT_THAT(series.steps(1, filtered(40)), IsEmpty());  // 5 batches of 8 groups
  EXPECT_THAT(series.steps(1, filtered(41)), ElementsAre("+all_filtered@2"));
  EXPECT_THAT(series.steps(1, filtered(16)), IsEmpty());  // 2 batches
  EXPECT_THAT(series.steps(1, filtered(15)), ElementsAre("-all_filtered@4"));
  EXPECT_THAT(series.waiting(40, 8), IsEmpty());
  EXPECT_THAT(series.waiting(48, 8), ElementsAre("+all_filtered@4"));
  EXPECT_THAT(series.waiting(96, 8), IsEmpty());  // it is raised
  EXPECT_THAT(series.raised().front().text, HasSubstr("6 batches of groups were filtered"));
}

TEST(RunAlarms, ARewardThatDoesNotMoveIsNoAlarm) {
  Series series;
  EXPECT_THAT(series.steps(1000, {{"reward/all/mean", 0.1},
                                  {"entropy/all/mean", 2.0},
                                  {"mismatch_kl/all/mean", 0.001},
                                  {"effective_size/all/mean", 0.99},
                                  {"progress/groups_filtered", 0},
                                  {"progress/groups", 8}}),
              IsEmpty());
}

TEST(RunAlarms, ValuesThatAreNotFiniteDoNotCount) {
  Series series;
  series.steps(10, effective(1));
  EXPECT_THAT(series.steps(50, effective(std::numeric_limits<double>::quiet_NaN())), IsEmpty());
  EXPECT_THAT(series.steps(10, effective(0.4)), ElementsAre("+effective_size@69"));
}

TEST(RunAlarms, LinesOfEvaluationsAndEnvironmentsChangeNothing) {
  Series series;
  EXPECT_THAT(series.steps(50, {{"eval/e/avg@1", 0}, {"effective_size/all/mean", 0}}), IsEmpty());
  EXPECT_THAT(series.steps(50, {{"env/e/num_turns/mean", 0}, {"effective_size/all/mean", 0}}),
              IsEmpty());
}

TEST(RunAlarms, TenantsHaveAlarmsOfTheirOwn) {
  RunAlarms alarms{AlarmSettings()};
  for (int step = 1; step <= 10; ++step) {
    alarms.add("a", step, step, effective(0.1));
    alarms.add("b", step, step, effective(0.9));
  }
  EXPECT_EQ(alarms.raised("a").size(), 1U);
  EXPECT_THAT(alarms.raised("b"), IsEmpty());
  EXPECT_EQ(alarms.raised("a").front().tenant, "a");
}

TEST(RunAlarms, AnAlarmWhoseBoundIsZeroIsOff) {
  Series series({.entropy_collapse = 0, .mismatch_kl = 0, .effective_size = 0, .all_filtered = 0});
  series.steps(10, entropy(100));
  EXPECT_THAT(series.steps(30, entropy(0)), IsEmpty());
  EXPECT_THAT(series.steps(30, mismatch(100)), IsEmpty());
  EXPECT_THAT(series.steps(30, effective(0)), IsEmpty());
  EXPECT_THAT(series.steps(1, filtered(800)), IsEmpty());
  EXPECT_THAT(series.waiting(800, 8), IsEmpty());
}

TEST(RunAlarms, OtherBoundsAreRaisedAndEndWhereTheyShould) {
  Series kl({.window = 2, .mismatch_kl = 1});
  kl.steps(2, mismatch(0));
  EXPECT_THAT(kl.steps(4, mismatch(0.199)), IsEmpty());  // a fifth of the bound
  EXPECT_THAT(kl.steps(2, mismatch(0.201)), ElementsAre("+mismatch_kl@8"));
  EXPECT_THAT(kl.steps(2, mismatch(0.09)), ElementsAre("-mismatch_kl@10"));
  Series size({.window = 1, .effective_size = 0.9});
  EXPECT_THAT(size.steps(1, effective(0.89)), ElementsAre("+effective_size@1"));
  EXPECT_THAT(size.steps(1, effective(0.95)), IsEmpty());  // halfway to the whole batch
  EXPECT_THAT(size.steps(1, effective(0.96)), ElementsAre("-effective_size@3"));
  Series filter({.all_filtered = 10});
  EXPECT_THAT(filter.steps(1, filtered(80)), IsEmpty());
  EXPECT_THAT(filter.steps(1, filtered(81)), ElementsAre("+all_filtered@2"));
  EXPECT_THAT(filter.steps(1, filtered(32)), IsEmpty());
  EXPECT_THAT(filter.steps(1, filtered(31)), ElementsAre("-all_filtered@4"));
}

class AlarmsOfARun : public testing::Test {
 protected:
  AlarmsOfARun() : folder_(*RunFolder::create(scratch_.path(), "", "run", "time")) {}
  std::unique_ptr<MetricsLog> open(const AlarmSettings& bounds = {}) const {
    auto log = MetricsLog::open(*folder_, 1e9, false, bounds);
    EXPECT_TRUE(log.ok()) << log.error().text();
    return std::move(log).value();
  }
  static void write(MetricsLog& log, int first, int last, double value) {
    for (int step = first; step <= last; ++step)
      ASSERT_TRUE(log.write("main", step, step * 0.1234567, effective(value)).ok());
  }
  std::string lines() const {
    return std::filesystem::exists(folder_->alarms_file()) ? *read_text_file(folder_->alarms_file())
                                                           : "";
  }

  const ScratchFolder scratch_;
  const std::unique_ptr<RunFolder> folder_;
};

TEST_F(AlarmsOfARun, AreLinesOfAlarmsJsonl) {
  auto log = open();
  write(*log, 1, 10, 0.9);
  EXPECT_EQ(lines(), "");
  write(*log, 11, 20, 0.25);
  EXPECT_EQ(lines(),
            "{\"step\":17,\"time\":2.099,\"tenant\":\"main\",\"alarm\":\"effective_size\","
            "\"state\":\"raised\",\"value\":0.445,\"bound\":0.5,\"text\":\"the "
            "effective sample size of the last 10 steps is 44% of the batch\",\"advice\":\"A few "
            "tokens decide each step: lower max_off_policy_steps or optimizer.lr, or choose an "
            "objective that limits weights, such as tis or icepop.\"}\n");
  EXPECT_EQ(log->take_alarm_changes().size(), 1U);
  EXPECT_THAT(log->take_alarm_changes(), IsEmpty());
}

TEST_F(AlarmsOfARun, AreReadAgainAfterItsEnd) {
  EXPECT_THAT(raised_alarms(folder_->alarms_file()), IsEmpty());
  auto log = open();
  write(*log, 1, 20, 0.25);
  ASSERT_EQ(raised_alarms(folder_->alarms_file()).size(), 1U);
  EXPECT_EQ(*raised_alarms(folder_->alarms_file())[0].get_int("step"), 10);
  write(*log, 21, 40, 0.9);
  EXPECT_THAT(raised_alarms(folder_->alarms_file()), IsEmpty());
  write_text(folder_->alarms_file(), "no JSON\n");
  EXPECT_THAT(raised_alarms(folder_->alarms_file()), IsEmpty());
}

TEST_F(AlarmsOfARun, AreTheSameAfterAResume) {
  write(*open(), 1, 30, 0.25);
  const std::string once = lines();
  EXPECT_EQ(open()->alarms().changes.size(), 1U);
  EXPECT_EQ(lines(), once);
  // A line that was lost between the two files is written again.
  std::filesystem::remove(folder_->alarms_file());
  auto log = open();
  EXPECT_EQ(lines(), once);
  write(*log, 31, 50, 0.9);
  EXPECT_EQ(log->alarms().changes.size(), 2U);
}

TEST_F(AlarmsOfARun, AreComputedAgainWithTheBoundsOfAResume) {
  write(*open(), 1, 30, 0.45);
  EXPECT_EQ(open()->alarms().changes.size(), 1U);
  EXPECT_THAT(open({.effective_size = 0.4})->alarms().changes, IsEmpty());
  EXPECT_EQ(lines(), "");
}

TEST_F(AlarmsOfARun, FollowStepsThatAreMadeAgain) {
  write(*open(), 1, 30, 0.25);  // raised in step 10
  {
    auto log = open();
    write(*log, 6, 30, 0.9);  // from a checkpoint of step 5: never below 0.5
    EXPECT_THAT(log->alarms().changes, IsEmpty());
    EXPECT_EQ(lines(), "");
  }
  auto log = open();
  write(*log, 25, 40, 0.25);
  ASSERT_EQ(log->alarms().changes.size(), 1U);
  // As if the run had never been stopped.
  RunAlarms fresh{AlarmSettings()};
  std::vector<int64_t> raised;
  for (int step = 1; step <= 40; ++step)
    for (const auto& change : fresh.add("main", step, step,
                                        effective(step <= 5   ? 0.25
                                                  : step < 25 ? 0.9
                                                              : 0.25)))
      raised.push_back(change.step);
  EXPECT_THAT(raised, ElementsAre(log->alarms().changes.front().step));
}

TEST_F(AlarmsOfARun, AStepThatRaisesAnAlarmWhenItIsMadeAgainIsReported) {
  write(*open(), 1, 10, 0.55);
  auto log = open();
  write(*log, 10, 10, 0.01);
  EXPECT_EQ(log->take_alarm_changes().size(), 1U);
}

TEST_F(AlarmsOfARun, AFileThatIsNoMetricsIsNamed) {
  write_text(folder_->metrics_file(), "[1]\n");
  EXPECT_EQ(alarm_history(folder_->metrics_file(), {}).error().code(), Code::kCorrupt);
  EXPECT_TRUE(alarm_history(scratch_.path() / "missing", {}).ok());
}

}  // namespace
}  // namespace primerl
