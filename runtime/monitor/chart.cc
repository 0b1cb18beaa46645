#include "runtime/monitor/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace primerl {
namespace {

/// A range with a width, so that a point has a place in it.
ChartRange widened(double low, double high) {
  if (low > high) return {};
  constexpr double kSizeMin = 1e-290;  // parts of a smaller range would be rounded to 0
  const double size = std::max(std::abs(low), std::abs(high));
  if (high - low > std::max(size * 1e-9, kSizeMin)) return {low, high};
  const double margin = size > kSizeMin ? size * 0.1 : 0.5;
  return {low - margin, high + margin};
}

/// The x of all points, if it is the same.
std::optional<double> only_x(const Chart& chart) {
  std::optional<double> only;
  for (const ChartLine& line : chart.lines)
    for (const ChartPoint& point : line.points) {
      if (only && *only != point.x) return std::nullopt;
      only = point.x;
    }
  return only;
}

/// The smallest of 1, 2 and 5 times a power of ten that is at least `step`.
double round_step(double step) {
  const double power = std::pow(10.0, std::floor(std::log10(step)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= step * (1 - 1e-9)) return factor * power;
  return 10 * power;
}

/// An end of the horizontal axis: steps are whole, times have four digits.
std::string end_text(double value) {
  return value == std::floor(value) ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

std::string chart_plot_row(std::string_view cells) {
  return std::string(cells.substr(0, cells.find_last_not_of(' ') + 1));
}

/// Which lines pass through which cell of the plot.
class ChartCells {
 public:
  ChartCells(int width, int height)
      : width_(width), cells_(static_cast<size_t>(width * height), 0U) {}

  void add(size_t line, int column, int row) {
    cells_[static_cast<size_t>(row * width_ + column)] |= uint32_t{1} << line;
  }
  std::string row(int row) const {
    std::string text;
    for (int column = 0; column < width_; ++column) {
      const uint32_t lines = cells_[static_cast<size_t>(row * width_ + column)];
      text += lines == 0 ? ' ' : chart_mark(chosen(lines, column));
    }
    return text;
  }

 private:
  /// One of the lines that meet in a cell, another one in the next column.
  static size_t chosen(uint32_t lines, int column) {
    const int count = __builtin_popcount(lines);
    for (int skip = column % count; skip > 0; --skip) lines &= lines - 1;
    return static_cast<size_t>(__builtin_ctz(lines));
  }

  const int width_;
  std::vector<uint32_t> cells_;  // a bit for each line
};

/// The mean of the points in each column; between two columns with points the value is
/// interpolated. NaN left of the first point and right of the last.
std::vector<double> column_means(const ChartLine& line, ChartRange range, int width) {
  std::vector<double> sums(static_cast<size_t>(width)), counts(static_cast<size_t>(width));
  for (const ChartPoint& point : line.points) {
    const double share = (point.x - range.low) / (range.high - range.low);
    const auto column = static_cast<size_t>(
        std::clamp(std::lround(share * (width - 1)), 0L, static_cast<long>(width - 1)));
    sums[column] += point.y;
    counts[column] += 1;
  }
  std::vector<double> means(sums.size(), std::nan(""));
  size_t before = sums.size();  // the last column with points; none
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] == 0) continue;
    means[i] = sums[i] / counts[i];
    for (size_t j = before + 1; before < sums.size() && j < i; ++j)
      means[j] = means[before] + (means[i] - means[before]) * static_cast<double>(j - before) /
                                     static_cast<double>(i - before);
    before = i;
  }
  return means;
}

void draw_line(size_t index, const std::vector<double>& means, ChartRange range, int height,
               ChartCells& cells) {
  int before = -1;
  for (size_t column = 0; column < means.size(); ++column) {
    if (std::isnan(means[column])) continue;
    const double share = (means[column] - range.low) / (range.high - range.low);
    const int row =
        std::clamp(static_cast<int>(std::lround((1 - share) * (height - 1))), 0, height - 1);
    // Adjacent columns are joined, so that a steep rise is one continuous line.
    const int from = before < 0 || before == row ? row : before + (row > before ? 1 : -1);
    for (int i = std::min(from, row); i <= std::max(from, row); ++i)
      cells.add(index, static_cast<int>(column), i);
    before = row;
  }
}

}  // namespace

char chart_mark(size_t line) {
  return static_cast<char>(line < 26 ? 'a' + line : 'A' + (line - 26) % 26);
}

ChartRange x_range(const Chart& chart) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const ChartLine& line : chart.lines)
    for (const ChartPoint& point : line.points)
      low = std::min(low, point.x), high = std::max(high, point.x);
  return widened(low, high);
}

ChartRange y_range(const Chart& chart, bool with_spread) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const ChartLine& line : chart.lines)
    for (const ChartPoint& point : line.points) {
      const bool is_wide = with_spread && line.has_spread;
      low = std::min(low, is_wide ? point.low : point.y);
      high = std::max(high, is_wide ? point.high : point.y);
    }
  return widened(low, high);
}

std::vector<double> round_ticks(ChartRange range, int count_max) {
  const double width = range.high - range.low;
  double step = round_step(width / std::max(count_max - 1, 1));
  std::vector<double> ticks;
  for (;; step = round_step(step * 1.5)) {
    ticks.clear();
    const double first = std::ceil(range.low / step - 1e-9);
    const double last = std::floor(range.high / step + 1e-9);
    if (last - first + 1 > count_max) continue;
    for (double i = first; i <= last; ++i) ticks.push_back(i * step + 0.0);
    return ticks;
  }
}

std::vector<double> x_ticks(const Chart& chart, int count_max) {
  const ChartRange range = x_range(chart);
  if (const auto only = only_x(chart)) return {*only};
  std::vector<double> ticks = round_ticks(range, count_max);
  const bool is_whole = std::ranges::all_of(chart.lines, [](const ChartLine& line) {
    return std::ranges::all_of(
        line.points, [](const ChartPoint& point) { return point.x == std::floor(point.x); });
  });
  if (is_whole)
    std::erase_if(ticks, [](double tick) { return std::abs(tick - std::round(tick)) > 1e-9; });
  return ticks;
}

std::string tick_text(double value) {
  const double size = std::abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return fmt::format("{:.3g}", value);
  return fmt::format("{:.6g}", size < 1e-12 ? 0.0 : value);
}

std::string chart_text(const Chart& chart, const ChartTextStyle& style) {
  const bool has_points = std::any_of(chart.lines.begin(), chart.lines.end(),
                                      [](const ChartLine& line) { return !line.points.empty(); });
  if (!has_points) return {};
  const ChartRange x = x_range(chart), y = y_range(chart, false);
  ChartCells cells(style.width, style.height);
  for (size_t i = 0; i < chart.lines.size(); ++i)
    draw_line(i, column_means(chart.lines[i], x, style.width), y, style.height, cells);
  const std::string top = fmt::format("{:.3g}", y.high), bottom = fmt::format("{:.3g}", y.low);
  const size_t label = std::max(top.size(), bottom.size());
  std::string text =
      chart.title + (chart.y_name.empty() ? "" : fmt::format(" ({})", chart.y_name)) + "\n";
  for (int row = 0; row < style.height; ++row) {
    const std::string_view name = row == 0                  ? std::string_view(top)
                                  : row == style.height - 1 ? std::string_view(bottom)
                                                            : std::string_view();
    text += fmt::format("{}{:>{}} {}{}\n", style.indent, name, label, style.utf8 ? "│" : "|",
                        chart_plot_row(cells.row(row)));
  }
  std::string axis;
  for (int i = 0; i < style.width; ++i) axis += style.utf8 ? "─" : "-";
  text += fmt::format("{}{:>{}} {}{}\n", style.indent, "", label, style.utf8 ? "└" : "+", axis);
  // The points of a chart with one x are in the middle.
  if (const auto only = only_x(chart)) {
    const std::string name = fmt::format("{} {}", chart.x_name, end_text(*only));
    const int before = std::max(0, (style.width - static_cast<int>(name.size())) / 2);
    return text + fmt::format("{}{:>{}}  {:{}}{}\n", style.indent, "", label, "", before, name);
  }
  const std::string first = fmt::format("{} {}", chart.x_name, end_text(x.low));
  const std::string last = end_text(x.high);
  const int gap = std::max(1, style.width - static_cast<int>(first.size() + last.size()));
  return text + fmt::format("{}{:>{}}  {}{:{}}{}\n", style.indent, "", label, first, "", gap, last);
}

}  // namespace primerl
