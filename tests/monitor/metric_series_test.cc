#include "runtime/monitor/metric_series.h"

#include <gtest/gtest.h>

#include "graph/base/files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

std::string metrics_line(int step, const std::string& more, const std::string& tenant = "main") {
  return fmt::format("{{\"step\": {}, \"time\": {}.5, \"tenant\": \"{}\", {}}}\n", step, step,
                     tenant, more);
}

class MetricSeriesFile : public testing::Test {
 protected:
  Result<std::map<std::string, TenantSeries>> read(const std::string& text) const {
    const auto file = scratch_.path() / "metrics.jsonl";
    write_text(file, text);
    return read_metric_series(file, {"r", "eval/e/avg@1"});
  }
  static std::vector<int64_t> steps(const MetricSeries& series) {
    std::vector<int64_t> steps;
    for (const MetricPoint& point : series) steps.push_back(point.step);
    return steps;
  }
  const ScratchFolder scratch_;
};

TEST_F(MetricSeriesFile, HasTheWantedMetricsAndTheNamesOfAll) {
  const auto tenants = read(metrics_line(1, "\"r\": 0.5, \"other\": 1"));
  ASSERT_TRUE(tenants.ok()) << tenants.error().text();
  const TenantSeries& main = tenants->at("main");
  ASSERT_EQ(main.series.size(), 1U);
  EXPECT_EQ(main.series.at("r").front().time, 1.5);
  EXPECT_EQ(main.series.at("r").front().value, 0.5);
  EXPECT_EQ(main.names, (std::set<std::string>{"r", "other"}));
}

TEST_F(MetricSeriesFile, StepsThatWereMadeAgainReplaceTheEarlierOnes) {
  const auto tenants =
      read(metrics_line(1, "\"r\": 1") + metrics_line(2, "\"r\": 2") + metrics_line(3, "\"r\": 3") +
           metrics_line(3, "\"r\": 30", "other") + metrics_line(2, "\"r\": 20"));
  ASSERT_TRUE(tenants.ok());
  EXPECT_EQ(steps(tenants->at("main").series.at("r")), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(tenants->at("main").series.at("r").back().value, 20);
  EXPECT_EQ(tenants->at("other").series.at("r").back().value, 30);
}

TEST_F(MetricSeriesFile, ValuesThatAreNotFiniteOrTooLargeHaveNoPoint) {
  const auto tenants = read(metrics_line(1, "\"r\": null") + metrics_line(2, "\"r\": 1e150") +
                            metrics_line(3, "\"r\": 1.1e150") + metrics_line(4, "\"r\": \"x\""));
  ASSERT_TRUE(tenants.ok());
  EXPECT_EQ(steps(tenants->at("main").series.at("r")), (std::vector<int64_t>{2}));
}

TEST_F(MetricSeriesFile, EvaluationsAreSeriesOfTheirOwn) {
  const auto tenants =
      read(metrics_line(4, "\"r\": 1") + metrics_line(2, "\"eval/e/avg@1\": 0.25") +
           metrics_line(5, "\"r\": 2"));
  ASSERT_TRUE(tenants.ok());
  EXPECT_EQ(steps(tenants->at("main").series.at("r")), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(steps(tenants->at("main").series.at("eval/e/avg@1")), (std::vector<int64_t>{2}));
}

TEST_F(MetricSeriesFile, AnUnfinishedLastLineIsNotRead) {
  const auto tenants = read(metrics_line(1, "\"r\": 1") + "{\"step\": 2, \"ti");
  ASSERT_TRUE(tenants.ok()) << tenants.error().text();
  EXPECT_EQ(steps(tenants->at("main").series.at("r")), (std::vector<int64_t>{1}));
}

TEST_F(MetricSeriesFile, ABrokenLineIsNamedByItsNumber) {
  for (const std::string broken : {"{\"step\": 2,\n", "[1]\n", "{\"step\": 2}\n"}) {
    const auto tenants = read(metrics_line(1, "\"r\": 1") + broken);
    ASSERT_FALSE(tenants.ok()) << broken;
    EXPECT_EQ(tenants.error().code(), Code::kCorrupt);
    EXPECT_NE(tenants.error().text().find("metrics.jsonl:2"), std::string::npos)
        << tenants.error().text();
  }
}

}  // namespace
}  // namespace primerl
