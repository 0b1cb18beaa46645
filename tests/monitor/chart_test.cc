#include "runtime/monitor/chart.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/monitor/text_table.h"

namespace primerl {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

ChartLine line_of(std::string name, const std::vector<double>& values) {
  ChartLine line{std::move(name), {}, false};
  for (size_t i = 0; i < values.size(); ++i)
    line.points.push_back({static_cast<double>(i + 1), values[i], values[i], values[i]});
  return line;
}

Chart two_lines() {
  return {"reward/all/mean", "step", "", {line_of("one", {0, 1, 2, 3}), line_of("two", {0, 0, 0})}};
}

constexpr ChartTextStyle kSmall{.width = 12, .height = 4, .utf8 = false, .indent = "  "};

TEST(Chart, LinesAreDrawnWithTheirMarks) {
  EXPECT_EQ(chart_text(two_lines(), kSmall),
            "reward/all/mean\n"
            "  3 |         aaa\n"
            "    |      aaa\n"
            "    |   aaa\n"
            "  0 |ababbbbb\n"
            "    +------------\n"
            "     step 1     4\n");
}

TEST(Chart, MarksAlternateWhereLinesMeet) {
  Chart chart = two_lines();
  chart.lines[0] = chart.lines[1];
  EXPECT_THAT(chart_text(chart, kSmall), HasSubstr("|abababababab"));
}

TEST(Chart, ALineOfOneValueIsInTheMiddle) {
  const Chart chart{"x", "step", "nats", {line_of("one", {2})}};
  EXPECT_THAT(chart_text(chart, kSmall), testing::StartsWith("x (nats)\n  2.2 |"));
}

TEST(Chart, ARunOfOneStepHasOneTick) {
  const Chart chart{"x", "step", "", {line_of("one", {2}), line_of("two", {3})}};
  EXPECT_THAT(chart_text(chart, kSmall), testing::EndsWith("+------------\n        step 1\n"));
  EXPECT_THAT(x_ticks(chart, 9), ElementsAre(1));
  const Chart charts[] = {chart};
  const std::string svg = charts_svg("t", charts, {});
  EXPECT_THAT(svg, HasSubstr(">1<"));
  for (const char* other : {">0.9<", ">1.1<", ">0.95<"}) EXPECT_THAT(svg, Not(HasSubstr(other)));
}

TEST(Chart, TicksOfStepsAreWhole) {
  EXPECT_THAT(x_ticks({"x", "step", "", {line_of("one", {2, 2, 2})}}, 9), ElementsAre(1, 2, 3));
  Chart times = two_lines();
  times.lines[0].points[1].x = 2.5;
  EXPECT_THAT(x_ticks(times, 9), testing::Contains(1.5));
}

TEST(Chart, LongNamesAreCutBetweenCharacters) {
  std::string name, note;
  for (int i = 0; i < 200; ++i) name += "ä", note += "語";
  const Chart charts[] = {{"x", "step", "", {line_of(name, {1, 2})}}};
  const std::string notes[] = {note};
  const std::string svg = charts_svg("t", charts, notes);
  EXPECT_THAT(svg, HasSubstr(">..." + name.substr(0, 2 * 117) + "<"));
  EXPECT_THAT(svg, HasSubstr(">" + note.substr(0, 3 * 73) + "...<"));
  EXPECT_THAT(svg, Not(HasSubstr("\\x")));
}

TEST(TextTable, ColumnsAreAsWideAsTheirTextOnATerminal) {
  TextTable table({"name", "value"}, 1);
  table.add({"größe", "1"});
  table.add({"語", "22"});
  EXPECT_EQ(table.text(),
            "name   value\n"
            "größe      1\n"
            "語        22\n");
}

TEST(Chart, NoPointsMakeNoText) {
  EXPECT_EQ(chart_text({"x", "step", "", {ChartLine{"one", {}, false}}}, kSmall), "");
}

TEST(Chart, EveryLineHasAMarkOfItsOwn) {
  std::set<char> marks;
  for (size_t i = 0; i < kChartLinesMax; ++i) marks.insert(chart_mark(i));
  EXPECT_EQ(marks.size(), kChartLinesMax);
}

TEST(Chart, TicksAreRoundAndInsideOfTheRange) {
  EXPECT_THAT(round_ticks({0, 1}, 6),
              ElementsAre(0, 0.2, 0.4, testing::DoubleNear(0.6, 1e-12), 0.8, 1));
  EXPECT_THAT(round_ticks({1, 80}, 5), ElementsAre(20, 40, 60, 80));
  EXPECT_THAT(round_ticks({-3, 3}, 3), ElementsAre(0));
  EXPECT_EQ(tick_text(round_ticks({0, 3e-7}, 4)[1]), "1e-07");
  EXPECT_EQ(tick_text(round_ticks({-0.2, 0.2}, 5)[2]), "0");
}

TEST(Chart, TicksOfHugeAndTinyRangesEnd) {
  for (const ChartRange range : {ChartRange{-1e150, 1e150}, ChartRange{0, 1e-300}})
    for (const int count : {2, 9}) {
      const auto ticks = round_ticks(range, count);
      EXPECT_FALSE(ticks.empty());
      EXPECT_LE(ticks.size(), static_cast<size_t>(count));
    }
}

TEST(Chart, TheDrawingHasAxesLegendAndNotes) {
  const std::string notes[] = {"lr = 1 (a)"};
  const Chart charts[] = {two_lines()};
  const std::string svg = charts_svg("two runs", charts, notes);
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  for (const char* text :
       {">two runs<", ">reward/all/mean<", ">step<", ">one<", ">two<", ">lr = 1 (a)<", ">4<"})
    EXPECT_THAT(svg, HasSubstr(text));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(Chart, TextOfOthersIsEscapedInTheDrawing) {
  Chart chart = two_lines();
  chart.title = "a<b";
  chart.lines[0].name = "x&\"y\"\x1b";
  const Chart charts[] = {chart};
  const std::string svg = charts_svg("t", charts, {});
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  EXPECT_THAT(svg, HasSubstr("x&amp;&quot;y&quot;\\u001B"));
}

TEST(Chart, ASpreadIsABandInTheColourOfItsLine) {
  Chart chart = two_lines();
  chart.lines[1].has_spread = true;
  for (ChartPoint& point : chart.lines[1].points) point.low = -1, point.high = 5;
  const Chart charts[] = {chart};
  const std::string svg = charts_svg("t", charts, {});
  EXPECT_THAT(svg, HasSubstr("fill-opacity=\"0.14\""));
  EXPECT_THAT(y_range(chart, true).high, 5);
  EXPECT_THAT(y_range(chart, false).high, 3);
}

TEST(Chart, LinesOfOneColourHaveOtherDashes) {
  Chart chart{"x", "step", "", {}};
  for (size_t i = 0; i < kChartLinesMax; ++i)
    chart.lines.push_back(line_of(fmt::format("run {}", i), {0, 1}));
  const Chart charts[] = {chart};
  const std::string svg = charts_svg("t", charts, {});
  std::set<std::string> strokes;
  for (size_t at = svg.find("stroke-width=\"2.2\""); at != std::string::npos;
       at = svg.find("stroke-width=\"2.2\"", at + 1)) {
    const size_t begin = svg.rfind("stroke=", at);
    strokes.insert(svg.substr(begin, svg.find("/>", at) - begin));
  }
  EXPECT_EQ(strokes.size(), kChartLinesMax);
}

TEST(Chart, ValuesTooNearToBeDividedAreDrawnAsEqual) {
  const Chart chart{"x", "step", "", {line_of("a", {0, 5e-324})}};
  const ChartRange range = y_range(chart, false);
  EXPECT_EQ(range.low, -0.5);
  EXPECT_EQ(range.high, 0.5);
  EXPECT_LE(round_ticks(range, 6).size(), 6U);
}

TEST(Chart, LongNamesKeepTheirEnd) {
  Chart chart = two_lines();
  chart.lines[0].name = std::string(200, 'x') + "/seed1";
  const Chart charts[] = {chart};
  const std::string svg = charts_svg("t", charts, {});
  EXPECT_THAT(svg, HasSubstr(">...xxx"));
  EXPECT_THAT(svg, HasSubstr("xxx/seed1<"));
}

}  // namespace
}  // namespace primerl
