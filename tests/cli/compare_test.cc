// `compare` on run folders that the test writes: which curves are drawn, with which numbers, and
// what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/cli/program.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class Compare : public testing::Test {
 protected:
  /// Writes a run whose reward at step s is `reward(s)`, two seconds a step.
  void add_run(const std::string& name, int seed, const std::string& lr, int num_steps,
               const std::function<double(int)>& reward) const {
    const auto folder = folder_ / name;
    std::filesystem::create_directory(folder);
    write_text(folder / "run.json", "{\"end\": \"finished\"}\n");
    write_text(folder / "graph.resolved.toml",
               fmt::format("[graph]\nseed = {}\n[resource.learner]\noptimizer = {{ lr = {} }}\n",
                           seed, lr));
    std::string lines;
    for (int step = 1; step <= num_steps; ++step)
      lines += fmt::format(
          "{{\"step\": {}, \"time\": {}, \"tenant\": \"main\", \"reward/all/mean\": {},"
          " \"entropy/all/mean\": {}}}\n",
          step, 2 * step, reward(step), 1.0 / step);
    if (num_steps > 0) write_text(folder / "metrics.jsonl", lines);
  }
  void add_run(const std::string& name, int seed, const std::string& lr, int num_steps) const {
    add_run(name, seed, lr, num_steps, [](int step) { return step / 10.0; });
  }
  /// In the folder of the runs, so that their names are short; without UTF-8.
  ProgramEnd compare(std::vector<std::string> words) const {
    words.insert(words.begin(), {"primerl-graph", "compare"});
    return Program(std::move(words), {"LC_ALL=C"}, folder_.string()).wait();
  }
  Json compared(std::vector<std::string> words) const {
    words.push_back("--json");
    const auto end = compare(std::move(words));
    EXPECT_EQ(end.code, 0) << end.err;
    auto parsed = parse_json(end.out, "comparison");
    EXPECT_TRUE(parsed.ok()) << end.out;
    return parsed.ok() ? *parsed : Json();
  }
  static const Json& curve(const Json& comparison, size_t index) {
    return comparison.find("metrics")->as_array()[0].find("curves")->as_array()[index];
  }
  static std::vector<double> points(const Json& curve, size_t column) {
    std::vector<double> values;
    for (const Json& point : curve.find("points")->as_array())
      values.push_back(point.as_array()[column].as_double());
    return values;
  }

  const ScratchFolder scratch_;
  const std::filesystem::path& folder_ = scratch_.path();
};

TEST_F(Compare, TwoRunsAreDrawnWithTheirNumbersAndDifferentOptions) {
  add_run("fast", 1, "2e-4", 6);
  add_run("slow", 1, "1e-4", 4, [](int) { return 0.1; });
  const auto end = compare({"fast", "slow"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, testing::StartsWith("reward/all/mean\n  0.6 |"));
  EXPECT_THAT(end.out, HasSubstr("\n    runs  steps  time  first  last\n"
                                 "a   fast      6   12s    0.3   0.4\n"
                                 "b   slow      4    8s    0.1   0.1\n"
                                 "\noptions that differ\n"
                                 "  resource.learner.optimizer.lr = 0.0002 (a), 0.0001 (b)\n"));
  EXPECT_EQ(end.err, "");
}

TEST_F(Compare, SeedsOfOneConfigurationAreOneCurveWithTheirRange) {
  for (int seed = 1; seed <= 3; ++seed)
    add_run(fmt::format("seed{}", seed), seed, "1e-4", 2,
            [seed](int step) { return step + seed * seed * 0.1; });
  const Json comparison = compared({"seed1", "seed2", "seed3"});
  EXPECT_EQ(*curve(comparison, 0).get_string("name"), "seed1 and 2 more");
  EXPECT_THAT(points(curve(comparison, 0), 1), ElementsAre(1.4, 2.4));  // the median, not the mean
  EXPECT_THAT(points(curve(comparison, 0), 2), ElementsAre(1.1, 2.1));
  EXPECT_THAT(points(curve(comparison, 0), 3), ElementsAre(1.9, 2.9));
  EXPECT_THAT(compare({"seed1", "seed2", "seed3"}).out,
              AllOf(HasSubstr("a   seed1 and 2 more   3      2    4s    1.9   1.9"),
                    HasSubstr("1.6 to 2.4"), HasSubstr("graph.seed = 1 (a), 2 (a), 3 (a)")));
  EXPECT_EQ(compared({"seed1", "seed2", "--each"})
                .find("metrics")
                ->as_array()[0]
                .find("curves")
                ->as_array()
                .size(),
            2U);
}

TEST_F(Compare, OptionsThatAllGraphsHaveComeFirstAndTheListIsBounded) {
  add_run("old", 1, "1", 2);
  add_run("new", 1, "2", 2);
  std::string graph = *read_text_file(folder_ / "new/graph.resolved.toml") + "[a]\n";
  for (int i = 10; i < 50; ++i) graph += fmt::format("k{} = 1\n", i);
  write_text(folder_ / "new/graph.resolved.toml", graph);
  const auto end = compare({"old", "new", "--svg", "drawn.svg"});
  EXPECT_THAT(end.out, HasSubstr("options that differ\n"
                                 "  resource.learner.optimizer.lr = 1 (a), 2 (b)\n"
                                 "  a.k10 = not written (a), 1 (b)\n"));
  EXPECT_THAT(end.out, HasSubstr("a.k48 = "));
  EXPECT_THAT(end.out, HasSubstr("  and 1 more: --json lists all\n"));
  const std::string svg = *read_text_file(folder_ / "drawn.svg");
  EXPECT_THAT(svg,
              AllOf(HasSubstr("a.k24 = "), Not(HasSubstr("a.k25 = ")), HasSubstr("and 25 more")));
}

TEST_F(Compare, AStepCountsWhileHalfOfTheSeedsHaveIt) {
  add_run("two1", 1, "1", 4);
  add_run("two2", 2, "1", 2);
  EXPECT_THAT(points(curve(compared({"two1", "two2"}), 0), 0), ElementsAre(1, 2, 3, 4));
  add_run("two3", 3, "1", 2);
  EXPECT_THAT(points(curve(compared({"two1", "two2", "two3"}), 0), 0), ElementsAre(1, 2));
}

TEST_F(Compare, OverTimeTheSeedsAreComparedAtTheSameMoments) {
  add_run("t1", 1, "1", 5, [](int) { return 1; });
  add_run("t2", 2, "1", 5, [](int) { return 3; });
  const Json comparison = compared({"t1", "t2", "--over", "time"});
  const auto times = points(curve(comparison, 0), 0);
  EXPECT_EQ(times.size(), 200U);
  EXPECT_EQ(times.front(), 2);
  EXPECT_EQ(times.back(), 10);
  EXPECT_EQ(points(curve(comparison, 0), 1).back(), 2);
  EXPECT_THAT(compare({"t1", "--over", "time"}).out, HasSubstr("time since the start (s) 2"));
}

TEST_F(Compare, ALongTimeIsShownInMinutes) {
  add_run("long", 1, "1", 90);
  EXPECT_THAT(compare({"long", "--over", "time"}).out, HasSubstr("time since the start (min)"));
}

TEST_F(Compare, PointsMayBeMeansOfTheLastOnes) {
  add_run("one", 1, "1", 4);
  EXPECT_THAT(points(curve(compared({"one", "--smooth", "2"}), 0), 1),
              ElementsAre(0.1, testing::DoubleNear(0.15, 1e-12), 0.25, 0.35));
  EXPECT_EQ(compare({"one", "--smooth", "1000"}).code, 0);
  EXPECT_EQ(compare({"one", "--smooth", "1001"}).code, 3);
  EXPECT_EQ(compare({"one", "--smooth", "0"}).code, 3);
}

TEST_F(Compare, SeveralMetricsAreSeveralChartsInOneDrawing) {
  add_run("one", 1, "1", 4);
  add_run("a<b", 1, "2", 4);
  const auto end = compare({"one", "a<b", "--metric", "reward/all/mean", "--metric",
                            "entropy/all/mean", "--svg", "drawn.svg"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.out, HasSubstr("\nentropy/all/mean (nats)\n"));
  const std::string svg = *read_text_file(folder_ / "drawn.svg");
  EXPECT_THAT(svg, AllOf(HasSubstr(">reward/all/mean<"), HasSubstr(">entropy/all/mean<"),
                         HasSubstr(">nats<"), HasSubstr("a&lt;b"), Not(HasSubstr("a<b"))));
}

TEST_F(Compare, ADrawingThatCannotBeWrittenIsAFailure) {
  add_run("one", 1, "1", 4);
  const auto end = compare({"one", "--svg", "missing/drawn.svg"});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.err, HasSubstr("missing/drawn.svg"));
}

TEST_F(Compare, EachTenantIsACurveUnlessOneIsChosen) {
  add_run("pair", 1, "1", 2);
  write_text(folder_ / "pair/metrics.jsonl",
             "{\"step\": 1, \"time\": 1, \"tenant\": \"x\", \"reward/all/mean\": 1}\n"
             "{\"step\": 1, \"time\": 1, \"tenant\": \"y\", \"reward/all/mean\": 2}\n");
  EXPECT_EQ(*curve(compared({"pair"}), 1).get_string("name"), "pair, tenant y");
  EXPECT_EQ(*curve(compared({"pair", "--tenant", "y"}), 0).get_string("tenant"), "y");
  const auto none = compare({"pair", "--tenant", "z"});
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("no run has a tenant 'z'\n  help: tenants: x and y\n"));
}

TEST_F(Compare, ARunWithoutTheMetricIsNotedAndTheOthersAreDrawn) {
  add_run("one", 1, "1", 2);
  add_run("other", 1, "2", 2);
  write_text(folder_ / "other/metrics.jsonl",
             "{\"step\": 1, \"time\": 1, \"tenant\": \"main\", \"loss/mean\": 1}\n");
  const auto end = compare({"one", "other"});
  EXPECT_EQ(end.code, 0);
  EXPECT_EQ(end.err, "note: 'other' has no 'reward/all/mean'\n");
  EXPECT_THAT(compare({"other"}).out, testing::StartsWith("loss/mean\n"));  // supervised
}

TEST_F(Compare, AnUnknownMetricIsNamedWithTheNearest) {
  add_run("one", 1, "1", 2);
  const auto near = compare({"one", "--metric", "reward/all/maen"});
  EXPECT_EQ(near.code, 3);
  EXPECT_EQ(near.err,
            "error: no run has a metric 'reward/all/maen'\n"
            "  help: did you mean 'reward/all/mean'?\n");
  EXPECT_THAT(compare({"one", "--metric", "x"}).err,
              HasSubstr("metrics: entropy/all/mean and reward/all/mean"));
}

TEST_F(Compare, ARunThatOnlyEvaluatedNamesTheMetricsThatItHas) {
  add_run("eval", 1, "1", 1);
  write_text(folder_ / "eval/metrics.jsonl",
             "{\"step\": 0, \"time\": 1, \"tenant\": \"main\", \"eval/e/avg@1\": 0.5}\n");
  const auto end = compare({"eval"});
  EXPECT_EQ(end.code, 3);
  EXPECT_THAT(end.err, HasSubstr("no run has a metric 'reward/all/mean'\n"
                                 "  help: metrics: eval/e/avg@1\n"));
  EXPECT_EQ(compare({"eval", "--metric", "eval/e/avg@1"}).code, 0);
}

TEST_F(Compare, WhatIsNoRunIsNamed) {
  EXPECT_EQ(compare({}).code, 3);
  const auto missing = compare({"missing"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_THAT(missing.err, HasSubstr("no run folder '"));
  std::filesystem::create_directory(folder_ / "folder");
  EXPECT_THAT(compare({"folder"}).err, HasSubstr("is no run folder: it has no run.json"));
  add_run("fresh", 1, "1", 0);
  const auto fresh = compare({"fresh"});
  EXPECT_EQ(fresh.code, 2);
  EXPECT_THAT(fresh.err, HasSubstr("has no step yet"));
  add_run("broken", 1, "1", 1);
  write_text(folder_ / "broken/metrics.jsonl", "{\"step\": 1}\n");
  const auto broken = compare({"broken"});
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, HasSubstr("metrics.jsonl:1"));
}

TEST_F(Compare, ARunIsGivenOnce) {
  add_run("one", 1, "1", 2);
  const auto end = compare({"one", "./one/"});
  EXPECT_EQ(end.code, 3);
  EXPECT_THAT(end.err, HasSubstr("'one' and './one/' are the same run"));
}

TEST_F(Compare, AtMost32RunsAnd8MetricsAreCompared) {
  std::vector<std::string> runs;
  for (int i = 0; i < 32; ++i) {
    runs.push_back(fmt::format("run{}", i));
    add_run(runs.back(), i, fmt::format("{}", i + 1), 2);
  }
  EXPECT_EQ(compare(runs).code, 0);
  runs.emplace_back("one-more");
  const auto many = compare(runs);
  EXPECT_EQ(many.code, 3);
  EXPECT_THAT(many.err, HasSubstr("33 runs, at most 32 can be compared"));

  std::vector<std::string> words = {"run0"};
  for (int i = 0; i < 9; ++i)
    words.insert(words.end(), {"--metric", i == 0 ? "reward/all/mean" : fmt::format("m{}", i)});
  EXPECT_THAT(compare(words).err, HasSubstr("9 metrics, at most 8 can be compared"));
  words.resize(words.size() - 2);
  EXPECT_THAT(compare(words).err, HasSubstr("no run has a metric 'm1'"));
  EXPECT_THAT(compare({"run0", "--metric", "x", "--metric", "x"}).err,
              HasSubstr("--metric x is given twice"));
}

}  // namespace
}  // namespace primerl
