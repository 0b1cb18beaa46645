#include "runtime/monitor/metrics_log.h"

#include <gmock/gmock.h>

#include <cmath>
#include <fstream>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;

TEST(MetricsLog, OneFlatObjectAStepAndTheNewestIsRemembered) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  auto log = MetricsLog::open(**folder, 1e9, false, {});
  ASSERT_TRUE(log.ok());
  ASSERT_TRUE(
      (*log)->write("main", 1, 0.25, {{"reward/all/mean", 0.5}, {"off_policy/max", 1}}).ok());
  ASSERT_TRUE((*log)->write("main", 2, 0.5004, {{"reward/all/mean", std::nan("")}}).ok());
  EXPECT_EQ(*read_text_file((*folder)->metrics_file()),
            R"({"step":1,"time":0.25,"tenant":"main","reward/all/mean":0.5,"off_policy/max":1.0})"
            "\n"
            R"({"step":2,"time":0.5,"tenant":"main","reward/all/mean":null})"
            "\n");
  ASSERT_NE((*log)->newest("main"), nullptr);
  EXPECT_EQ((*log)->newest("main")->step, 2);
  EXPECT_EQ((*log)->newest("other"), nullptr);
  ASSERT_EQ((*log)->scores("main").size(), 2U);
  EXPECT_EQ((*log)->scores("main")[0], 0.5);
  EXPECT_NEAR((*log)->seconds_per_step("main"), 0.2504, 1e-9);
  EXPECT_EQ((*log)->seconds_per_step("other"), 0);
}

TEST(MetricsLog, ASecondStartAppends) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  for (const int64_t step : {1, 2}) {
    auto log = MetricsLog::open(**folder, 1e9, false, {});
    ASSERT_TRUE(log.ok());
    ASSERT_TRUE((*log)->write("main", step, 1, {}).ok());
  }
  EXPECT_EQ(*read_text_file((*folder)->metrics_file()),
            "{\"step\":1,\"time\":1.0,\"tenant\":\"main\"}\n"
            "{\"step\":2,\"time\":1.0,\"tenant\":\"main\"}\n");
}

TEST(MetricsLog, ARecoveredRunWritesNoStepTwice) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  {
    auto log = MetricsLog::open(**folder, 1e9, false, {});
    for (const int64_t step : {1, 2}) ASSERT_TRUE((*log)->write("main", step, 1, {}).ok());
  }
  auto log = MetricsLog::open(**folder, 1e9, false, {});
  ASSERT_TRUE((*log)->skip_written({}).ok());
  for (const int64_t step : {1, 2, 3})
    ASSERT_TRUE((*log)->write("main", step, 2, {{"reward/all/mean", 0.5}}).ok());
  EXPECT_EQ(*read_text_file((*folder)->metrics_file()),
            "{\"step\":1,\"time\":1.0,\"tenant\":\"main\"}\n"
            "{\"step\":2,\"time\":1.0,\"tenant\":\"main\"}\n"
            "{\"step\":3,\"time\":2.0,\"tenant\":\"main\",\"reward/all/mean\":0.5}\n");
  EXPECT_EQ((*log)->scores("main").size(), 3U);  // the curve covers the whole run
}

TEST(MetricsLog, StepsThatAreTakenAgainReplaceTheirLines) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  {
    auto log = MetricsLog::open(**folder, 1e9, true, {});
    for (const int64_t step : {1, 2, 3, 4})
      for (const char* tenant : {"a", "b"}) ASSERT_TRUE((*log)->write(tenant, step, 1, {}).ok());
  }
  auto log = MetricsLog::open(**folder, 1e9, true, {});
  ASSERT_TRUE((*log)->skip_written({{"a", 2}, {"b", 4}}).ok());
  const std::string before = *read_text_file((*folder)->metrics_file());
  for (const int64_t step : {1, 2}) ASSERT_TRUE((*log)->write("a", step, 2, {}).ok());
  EXPECT_EQ(*read_text_file((*folder)->metrics_file()), before) << "until a step is taken again";
  for (const int64_t step : {3, 4}) ASSERT_TRUE((*log)->write("a", step, 2, {}).ok());
  std::map<std::string, std::vector<std::string>> lines;
  std::ifstream stream((*folder)->metrics_file());
  for (std::string line; std::getline(stream, line);)
    lines[*parse_json(line, "line")->get_string("tenant")].push_back(line);
  EXPECT_THAT(lines["a"], ElementsAre("{\"step\":1,\"time\":1.0,\"tenant\":\"a\"}",
                                      "{\"step\":2,\"time\":1.0,\"tenant\":\"a\"}",
                                      "{\"step\":3,\"time\":2.0,\"tenant\":\"a\"}",
                                      "{\"step\":4,\"time\":2.0,\"tenant\":\"a\"}"));
  EXPECT_EQ(lines["b"].size(), 4U);
}

TEST(MetricsLog, StepsAfterTheCheckpointReplaceTheirLines) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  const auto open = [&] { return MetricsLog::open(**folder, 1e9, true, {}).value(); };
  const MetricValues evaluation = {{"eval/e/avg@1", 0.5}}, waiting = {{"waiting/groups", 2}};
  {
    auto log = open();
    for (const int64_t step : {1, 2, 3})
      for (const char* tenant : {"none", "early", "newest"})
        ASSERT_TRUE(log->write(tenant, step, 1, {}).ok());
    ASSERT_TRUE(log->write("early", 3, 1, evaluation).ok());
    ASSERT_TRUE(log->write("early", 3, 1, waiting).ok());
  }
  const auto lines_of = [&](const std::string& tenant) {
    std::vector<std::string> lines;  // step and time, and whether they are of a step
    std::ifstream stream((*folder)->metrics_file());
    for (std::string text; std::getline(stream, text);) {
      const Json line = parse_json(text, "line").value();
      if (*line.get_string("tenant") == tenant)
        lines.push_back(fmt::format("{} at {}{}", *line.get_int("step"), *line.get_double("time"),
                                    line.as_object().size() == 3 ? "" : " other"));
    }
    return lines;
  };
  auto log = open();
  ASSERT_TRUE(log->replace_later({{"none", 0}, {"early", 2}, {"newest", 3}}).ok());
  ASSERT_TRUE(log->write("early", 2, 2, waiting).ok());
  EXPECT_EQ(lines_of("early").size(), 6U) << "until a step is made again";
  ASSERT_TRUE(log->write("early", 3, 2, {}).ok());
  EXPECT_THAT(lines_of("early"), ElementsAre("1 at 1", "2 at 1", "2 at 2 other", "3 at 2"));
  for (const int64_t step : {1, 2}) ASSERT_TRUE(log->write("none", step, 2, {}).ok());
  EXPECT_THAT(lines_of("none"), ElementsAre("1 at 2", "2 at 2"));
  ASSERT_TRUE(log->write("newest", 4, 2, {}).ok());
  EXPECT_THAT(lines_of("newest"), ElementsAre("1 at 1", "2 at 1", "3 at 1", "4 at 2"));
}

// Later lines must be removed first; what replaces them would otherwise follow them.
TEST(MetricsLog, NothingIsWrittenAfterARefusedStep) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  const auto file = (*folder)->metrics_file();
  {
    auto log = MetricsLog::open(**folder, 1e9, false, {});
    for (const int64_t step : {1, 2, 3}) ASSERT_TRUE((*log)->write("main", step, 1, {}).ok());
  }
  auto log = MetricsLog::open(**folder, 1e9, false, {});
  ASSERT_TRUE((*log)->skip_written({{"main", 1}}).ok());
  const std::string before = *read_text_file(file);
  const std::filesystem::path beside = file.string() + ".tmp";
  std::filesystem::create_directory(beside);  // the new file cannot be written
  const Status refused = (*log)->write("main", 2, 2, {});
  ASSERT_FALSE(refused.ok());
  std::filesystem::remove(beside);
  const Status later = (*log)->write("main", 3, 2, {});
  ASSERT_FALSE(later.ok());
  EXPECT_EQ(later.error().text(), refused.error().text());
  EXPECT_EQ(*read_text_file(file), before);
}

TEST(MetricsLog, TheNewestStepOfEachTenantIsThatOfItsLastLine) {
  const ScratchFolder scratch;
  const auto file = scratch.path() / "metrics.jsonl";
  EXPECT_TRUE(newest_steps(file)->empty());
  write_text(file,
             "{\"step\":9,\"tenant\":\"main\"}\n{\"step\":3,\"tenant\":\"other\"}\n"
             "{\"step\":5,\"tenant\":\"main\"}\n{\"step\":6,\"ten");
  const auto steps = newest_steps(file);
  ASSERT_TRUE(steps.ok()) << steps.error().text();
  EXPECT_EQ(steps->at("main"), 5);
  EXPECT_EQ(steps->at("other"), 3);
}

TEST(MetricsLog, KeepsAFewTenantsThatHaveLeft) {
  const ScratchFolder scratch;
  const auto folder = RunFolder::create(scratch.path(), scratch.path() / "run", "x", "now").value();
  auto log = MetricsLog::open(*folder, 1000, true, AlarmSettings()).value();
  const auto step = [&](size_t i) {
    const std::string name = fmt::format("t{}", i);
    ASSERT_TRUE(log->write(name, 1, static_cast<double>(i), {{"reward/all/mean", 0.5}}).ok());
  };
  for (size_t i = 0; i <= MetricsLog::kLeftMax; ++i) step(i);
  log->keep({"t0"});
  for (size_t i = 0; i <= MetricsLog::kLeftMax; ++i)
    EXPECT_NE(log->newest(fmt::format("t{}", i)), nullptr) << "at the bound: " << i;
  step(MetricsLog::kLeftMax + 1);
  log->keep({"t0"});
  EXPECT_NE(log->newest("t0"), nullptr) << "it is there";
  EXPECT_EQ(log->newest("t1"), nullptr) << "its step is the oldest";
  EXPECT_TRUE(log->scores("t1").empty());
  EXPECT_NE(log->newest("t2"), nullptr);
}

TEST(MetricsLog, AnEvaluationIsALineButNoStep) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  {
    auto log = MetricsLog::open(**folder, 1e9, false, {});
    ASSERT_TRUE((*log)->write("main", 0, 1, {{"eval/copy/avg@1", 0.5}}).ok());
    EXPECT_EQ((*log)->newest("main"), nullptr);
    ASSERT_TRUE((*log)->write("main", 1, 2, {{"reward/all/mean", 0.25}}).ok());
    ASSERT_TRUE((*log)->write("main", 2, 3, {{"reward/all/mean", 0.5}}).ok());
    ASSERT_TRUE((*log)->write("main", 1, 4, {{"eval/copy/avg@1", 0.75}}).ok());
    EXPECT_EQ((*log)->newest("main")->step, 2);
    EXPECT_THAT((*log)->scores("main"), ElementsAre(0.25, 0.5));
    ASSERT_NE((*log)->newest_evaluation("main"), nullptr);
    EXPECT_EQ((*log)->newest_evaluation("main")->get("eval/copy/avg@1"), 0.75);
  }
  EXPECT_EQ(newest_steps((*folder)->metrics_file())->at("main"), 2);
  // A resumed run makes the last evaluation and a later one again.
  auto log = MetricsLog::open(**folder, 1e9, false, {});
  ASSERT_TRUE((*log)->skip_written({{"main", 2}}).ok());
  ASSERT_TRUE((*log)->write("main", 1, 4, {{"eval/copy/avg@1", 0.75}}).ok());
  EXPECT_EQ((*log)->num_lines(), 0U);
  ASSERT_TRUE((*log)->write("main", 2, 5, {{"eval/copy/avg@1", 1}}).ok());
  EXPECT_EQ((*log)->num_lines(), 1U);
}

TEST(MetricsLog, NumbersOfAnEnvironmentAreALineButNoStep) {
  ScratchFolder scratch;
  auto folder = RunFolder::create(".", scratch.path() / "run", "a", "t");
  ASSERT_TRUE(folder.ok());
  {
    auto log = MetricsLog::open(**folder, 1e9, false, {});
    ASSERT_TRUE((*log)->write("main", 1, 2, {{"reward/all/mean", 0.25}}).ok());
    ASSERT_TRUE((*log)->write("main", 2, 3, {{"reward/all/mean", 0.5}}).ok());
    ASSERT_TRUE((*log)->write("main", 1, 4, {{"env/sums/num_turns/mean", 2}}).ok());
    EXPECT_EQ((*log)->newest("main")->step, 2);
    EXPECT_THAT((*log)->scores("main"), ElementsAre(0.25, 0.5));
    EXPECT_EQ((*log)->num_lines(), 3U);
  }
  EXPECT_EQ(newest_steps((*folder)->metrics_file())->at("main"), 2);
  // A resumed run repeats the numbers of step 1, and has those of step 2.
  auto log = MetricsLog::open(**folder, 1e9, false, {});
  ASSERT_TRUE((*log)->skip_written({{"main", 2}}).ok());
  ASSERT_TRUE((*log)->write("main", 1, 4, {{"env/sums/num_turns/mean", 2}}).ok());
  EXPECT_EQ((*log)->num_lines(), 0U);
  ASSERT_TRUE((*log)->write("main", 2, 5, {{"env/sums/num_turns/mean", 2}}).ok());
  EXPECT_EQ((*log)->num_lines(), 1U);
}

}  // namespace
}  // namespace primerl
