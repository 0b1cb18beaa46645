// Charts as one SVG document: title, a panel for each chart, a legend, notes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "graph/base/terminal_text.h"
#include "graph/base/xml_text.h"
#include "runtime/monitor/chart.h"

namespace primerl {
namespace {

// Dark enough on white, and distinguishable by people who do not see red and green.
constexpr std::array<std::string_view, 8> kLineColours = {
    "#0b5394", "#c2410c", "#0f766e", "#9d174d", "#a16207", "#6d28d9", "#4d7c0f", "#334155"};
// Lines of the same colour differ in their dashes.
constexpr std::array<std::string_view, 4> kLineDashes = {"", "7 3", "2 3", "9 3 2 3"};
static_assert(kLineColours.size() * kLineDashes.size() >= kChartLinesMax);

constexpr double kPageWidth = 960;
constexpr double kLeft = 84, kRight = 28;  // margins of a plot
constexpr double kPanelHeight = 330, kPlotTop = 34, kPlotHeight = 236;
constexpr double kTitleHeight = 44, kLegendRow = 20, kNoteRow = 16;
constexpr double kCharacterWidth = 6.6;  // of the legend's font, on average
constexpr size_t kMarkersMax = 24;       // a line with fewer points shows each of them
constexpr size_t kNameMax = 120;         // columns of a legend's entry
constexpr size_t kNoteMax = 150;         // columns

std::string_view line_colour(size_t line) { return kLineColours[line % kLineColours.size()]; }

std::string dash_attribute(size_t line) {
  const auto dashes = kLineDashes[line / kLineColours.size() % kLineDashes.size()];
  return dashes.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", dashes);
}

/// Long names keep their end, which distinguishes runs.
std::string legend_name(const std::string& name) {
  return num_columns(name) <= kNameMax ? name
                                       : "..." + std::string(last_columns(name, kNameMax - 3));
}

/// From values to pixels of one panel.
struct PanelScale {
  ChartRange x, y;
  double top = 0;

  double across(double value) const {
    return kLeft + (value - x.low) / (x.high - x.low) * (kPageWidth - kLeft - kRight);
  }
  double down(double value) const {
    return top + (1 - (value - y.low) / (y.high - y.low)) * kPlotHeight;
  }
};

/// A little space above and below the curves.
ChartRange with_margin(ChartRange range) {
  const double margin = (range.high - range.low) * 0.05;
  const bool from_zero = range.low >= 0 && range.low - margin < 0;
  return {from_zero ? 0 : range.low - margin, range.high + margin};
}

std::string axes_svg(const Chart& chart, const PanelScale& scale) {
  const double bottom = scale.top + kPlotHeight, right = kPageWidth - kRight;
  std::string text;
  for (const double tick : round_ticks(scale.y, 6))
    text += fmt::format(
        "  <path d=\"M{0:.1f} {1:.1f}H{2:.1f}\" stroke=\"#e2e8f0\"/>\n"
        "  <text x=\"{3:.1f}\" y=\"{4:.1f}\" text-anchor=\"end\" class=\"tick\">{5}</text>\n",
        kLeft, scale.down(tick), right, kLeft - 8, scale.down(tick) + 4, tick_text(tick));
  for (const double tick : x_ticks(chart, 9))
    text += fmt::format(
        "  <path d=\"M{0:.1f} {1:.1f}v5\" stroke=\"#475569\"/>\n"
        "  <text x=\"{0:.1f}\" y=\"{2:.1f}\" text-anchor=\"middle\" class=\"tick\">{3}</text>\n",
        scale.across(tick), bottom, bottom + 18, tick_text(tick));
  text += fmt::format(
      "  <path d=\"M{0:.1f} {1:.1f}V{2:.1f}H{3:.1f}\" fill=\"none\" stroke=\"#475569\"/>\n"
      "  <text x=\"{4:.1f}\" y=\"{5:.1f}\" text-anchor=\"middle\" class=\"axis\">{6}</text>\n",
      kLeft, scale.top, bottom, right, (kLeft + right) / 2, bottom + 36, xml_text(chart.x_name));
  if (!chart.y_name.empty())
    text += fmt::format(
        "  <text transform=\"translate(32 {:.1f}) rotate(-90)\" text-anchor=\"middle\" "
        "class=\"axis\">{}</text>\n",
        scale.top + kPlotHeight / 2, xml_text(chart.y_name));
  return text;
}

std::string spread_svg(const ChartLine& line, size_t index, const PanelScale& scale) {
  if (!line.has_spread || line.points.size() < 2) return {};
  std::string path;
  for (const ChartPoint& point : line.points)
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", scale.across(point.x),
                        scale.down(point.high));
  for (auto point = line.points.rbegin(); point != line.points.rend(); ++point)
    path += fmt::format("L{:.1f} {:.1f}", scale.across(point->x), scale.down(point->low));
  return fmt::format("  <path d=\"{}Z\" fill=\"{}\" fill-opacity=\"0.14\"/>\n", path,
                     line_colour(index));
}

std::string line_svg(const ChartLine& line, size_t index, const PanelScale& scale) {
  std::string path, markers;
  const bool has_markers = line.points.size() <= kMarkersMax;
  for (const ChartPoint& point : line.points) {
    const double x = scale.across(point.x), y = scale.down(point.y);
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y);
    if (has_markers)
      markers += fmt::format("  <circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.8\" fill=\"{}\"/>\n", x,
                             y, line_colour(index));
  }
  if (path.empty()) return {};
  return fmt::format(
             "  <path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\" "
             "stroke-linejoin=\"round\"{}/>\n",
             path, line_colour(index), dash_attribute(index)) +
         markers;
}

std::string panel_svg(const Chart& chart, double top) {
  PanelScale scale{x_range(chart), with_margin(y_range(chart, true)), top + kPlotTop};
  std::string text = fmt::format("  <text x=\"{:.1f}\" y=\"{:.1f}\" class=\"panel\">{}</text>\n",
                                 kLeft, top + kPlotTop - 12, xml_text(chart.title));
  text += axes_svg(chart, scale);
  for (size_t i = 0; i < chart.lines.size(); ++i) text += spread_svg(chart.lines[i], i, scale);
  for (size_t i = 0; i < chart.lines.size(); ++i) text += line_svg(chart.lines[i], i, scale);
  return text;
}

struct LegendLayout {
  size_t columns = 1, rows = 0;
  double column_width = 0;
};

LegendLayout legend_layout(std::span<const ChartLine> lines) {
  size_t longest = 1;
  for (const ChartLine& line : lines)
    longest = std::max(longest, num_columns(legend_name(line.name)));
  const double wanted = 58 + kCharacterWidth * static_cast<double>(longest);
  const double width = kPageWidth - kLeft - kRight;
  LegendLayout layout;
  layout.columns = std::clamp<size_t>(static_cast<size_t>(width / wanted), 1, 4);
  layout.rows = (lines.size() + layout.columns - 1) / layout.columns;
  layout.column_width = width / static_cast<double>(layout.columns);
  return layout;
}

std::string legend_svg(std::span<const ChartLine> lines, const LegendLayout& layout, double top) {
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i) {
    const double x = kLeft + layout.column_width * static_cast<double>(i / layout.rows);
    const double y = top + kLegendRow * static_cast<double>(i % layout.rows) + 12;
    if (lines[i].has_spread)
      text += fmt::format(
          "  <rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"32\" height=\"10\" fill=\"{}\" "
          "fill-opacity=\"0.14\"/>\n",
          x, y - 9, line_colour(i));
    text += fmt::format(
        "  <path d=\"M{0:.1f} {1:.1f}h32\" stroke=\"{2}\" stroke-width=\"2.2\"{3}/>\n"
        "  <text x=\"{4:.1f}\" y=\"{5:.1f}\" class=\"name\">{6}</text>\n",
        x, y - 4, line_colour(i), dash_attribute(i), x + 42, y,
        xml_text(legend_name(lines[i].name)));
  }
  return text;
}

constexpr std::string_view kStyle =
    "  <style>text{font-family:Helvetica,Arial,sans-serif;fill:#1f2937}"
    ".title{font-size:18px;font-weight:bold}.panel{font-size:14px;font-weight:bold}"
    ".axis{font-size:12px;fill:#475569}.tick{font-size:11px;fill:#475569}"
    ".name{font-size:12px}.note{font-size:11px;fill:#64748b}</style>\n";

}  // namespace

std::string charts_svg(std::string_view title, std::span<const Chart> charts,
                       std::span<const std::string> notes) {
  const std::span<const ChartLine> lines =
      charts.empty() ? std::span<const ChartLine>() : std::span(charts.front().lines);
  const LegendLayout legend = legend_layout(lines);
  const double legend_top = kTitleHeight + kPanelHeight * static_cast<double>(charts.size());
  const double notes_top = legend_top + kLegendRow * static_cast<double>(legend.rows) + 12;
  const double height = notes_top + kNoteRow * static_cast<double>(notes.size()) + 14;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "width=\"{0:.0f}\" height=\"{1:.0f}\">\n  <title>{2}</title>\n{3}"
      "  <rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n"
      "  <text x=\"{4:.1f}\" y=\"30\" class=\"title\">{2}</text>\n",
      kPageWidth, height, xml_text(title), kStyle, kLeft);
  for (size_t i = 0; i < charts.size(); ++i)
    text += panel_svg(charts[i], kTitleHeight + kPanelHeight * static_cast<double>(i));
  text += legend_svg(lines, legend, legend_top);
  for (size_t i = 0; i < notes.size(); ++i)
    text += fmt::format("  <text x=\"{:.1f}\" y=\"{:.1f}\" class=\"note\">{}</text>\n", kLeft,
                        notes_top + kNoteRow * static_cast<double>(i) + 10,
                        xml_text(num_columns(notes[i]) <= kNoteMax
                                     ? notes[i]
                                     : std::string(first_columns(notes[i], kNoteMax - 3)) + "..."));
  return text + "</svg>\n";
}

}  // namespace primerl
