#include "runtime/monitor/curve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace primerl {
namespace {

/// The average of each column; a column without a finite value is empty.
std::vector<std::optional<double>> columns_of(std::span<const double> values, size_t num_columns) {
  std::vector<std::optional<double>> columns(num_columns);
  for (size_t i = 0; i < num_columns; ++i) {
    const size_t begin = i * values.size() / num_columns;
    const size_t end = std::max(begin + 1, (i + 1) * values.size() / num_columns);
    double sum = 0;
    int count = 0;
    for (size_t j = begin; j < end; ++j)
      if (std::isfinite(values[j])) sum += values[j], ++count;
    if (count > 0) columns[i] = sum / count;
  }
  return columns;
}

void append_utf8(std::string& out, char32_t c) {  // the braille block: three bytes
  out += static_cast<char>(0xe0 | (c >> 12));
  out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
  out += static_cast<char>(0x80 | (c & 0x3f));
}

/// A grid of dots, two columns and four rows per character, and how it is drawn.
class Dots {
 public:
  Dots(int width, int height) : width_(width), cells_(static_cast<size_t>(width * height), 0) {}

  void set(int x, int y) {  // in dots; y grows downward
    static constexpr uint8_t kBits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    cells_[static_cast<size_t>((y / 4) * width_ + x / 2)] |= kBits[y % 4][x % 2];
  }
  std::string line(int row, bool utf8) const {
    std::string text;
    for (int x = 0; x < width_; ++x) {
      const uint8_t cell = cells_[static_cast<size_t>(row * width_ + x)];
      if (cell == 0)
        text += ' ';
      else if (utf8)
        append_utf8(text, 0x2800 + cell);
      else
        text += (cell & 0x1b) != 0 ? ((cell & 0xe4) != 0 ? ':' : '\'') : '.';
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
  }

 private:
  const int width_;
  std::vector<uint8_t> cells_;
};

void draw(const std::vector<std::optional<double>>& columns, double low, double high, int num_rows,
          Dots& dots) {
  int before = -1;  // the row of the column to the left; -1: that column is empty
  for (size_t i = 0; i < columns.size(); ++i) {
    if (!columns[i]) {
      before = -1;
      continue;
    }
    const double share = (*columns[i] - low) / (high - low);
    const int y = static_cast<int>(std::lround((1 - share) * (num_rows - 1)));
    // Adjacent columns are joined, so that a steep rise is one continuous line.
    const int from = before < 0 ? y : before + (y > before ? 1 : y < before ? -1 : 0);
    for (int row = std::min(from, y); row <= std::max(from, y); ++row)
      dots.set(static_cast<int>(i), row);
    before = y;
  }
}

}  // namespace

std::string draw_curve(std::span<const double> values, int64_t first_step,
                       const CurveStyle& style) {
  double low = HUGE_VAL, high = -HUGE_VAL;
  if (values.empty()) return {};
  const auto columns = columns_of(
      values, std::min(static_cast<size_t>(style.width) * 2, std::max<size_t>(values.size(), 1)));
  for (const auto& column : columns)
    if (column) low = std::min(low, *column), high = std::max(high, *column);
  if (low > high) return {};
  if (high - low < 1e-9) low -= 0.5, high += 0.5;

  const int width = static_cast<int>(columns.size() + 1) / 2;
  Dots dots(width, style.height);
  draw(columns, low, high, style.height * 4, dots);

  const std::string top = fmt::format("{:.3g}", high), bottom = fmt::format("{:.3g}", low);
  const size_t label = std::max(top.size(), bottom.size());
  std::string text;
  for (int row = 0; row < style.height; ++row) {
    std::string_view name;
    if (row == 0)
      name = top;
    else if (row == style.height - 1)
      name = bottom;
    text += fmt::format("{}{:>{}} {}{}\n", style.indent, name, label, style.utf8 ? "│" : "|",
                        dots.line(row, style.utf8));
  }
  std::string axis;
  for (int i = 0; i < width; ++i) axis += style.utf8 ? "─" : "-";
  text += fmt::format("{}{:>{}} {}{}\n", style.indent, "", label, style.utf8 ? "└" : "+", axis);
  const std::string first = fmt::format("step {}", first_step);
  const std::string last = fmt::format("{}", first_step + static_cast<int64_t>(values.size()) - 1);
  const int gap = std::max(1, width - static_cast<int>(first.size() + last.size()));
  text += fmt::format("{}{:>{}}  {}{:{}}{}\n", style.indent, "", label, first, "", gap, last);
  return text;
}

}  // namespace primerl
