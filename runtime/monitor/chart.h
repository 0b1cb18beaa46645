/// Charts of several curves: as text for a terminal, and as an SVG file. Pure.
///
///   reward/all/mean
///   0.65 |              bbb
///        |      bbbbbbabaaa
///   0.37 |abaabaaaaa
///        +----------------
///         step 1         80
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primerl {

struct ChartPoint {
  double x = 0;
  double y = 0;
  double low = 0, high = 0;  // spread around y
};

struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points;  // x rises; all numbers are finite
  bool has_spread = false;
};

struct Chart {
  std::string title;
  std::string x_name;  // "step", "time since the start (min)"
  std::string y_name;  // the unit: "tokens/s"; may be empty
  std::vector<ChartLine> lines;
};

/// Most lines of a chart: each has a mark of its own.
inline constexpr size_t kChartLinesMax = 32;
/// 'a' to 'z', then 'A' to 'F'.
char chart_mark(size_t line);

struct ChartRange {
  double low = 0, high = 1;
};
/// The range of all points; wider where all values are equal. `with_spread`: of low and high, too.
ChartRange x_range(const Chart& chart);
ChartRange y_range(const Chart& chart, bool with_spread);
/// Round numbers (1, 2 or 5 times a power of ten) inside of the range, at most `count_max` >= 2.
std::vector<double> round_ticks(ChartRange range, int count_max);
/// Those of the horizontal axis. Steps are whole, and a chart with points at one x alone has that
/// tick.
std::vector<double> x_ticks(const Chart& chart, int count_max);
/// Short and exact enough to distinguish adjacent ticks: "0.25", "1e-06", "12000".
std::string tick_text(double value);

struct ChartTextStyle {
  int width = 72;  // characters of the plot, without its axis
  int height = 12;
  bool utf8 = true;
  std::string indent = "  ";
};
/// Each line is drawn with its mark. Where lines meet, their marks alternate. Empty if no line has
/// a point.
std::string chart_text(const Chart& chart, const ChartTextStyle& style);

/// One document with the charts below each other, and one legend: the charts have the same lines,
/// in the same order. `notes` are small lines at the end.
std::string charts_svg(std::string_view title, std::span<const Chart> charts,
                       std::span<const std::string> notes);

}  // namespace primerl
