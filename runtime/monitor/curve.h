/// Draws a curve of numbers in the terminal: braille dots, or ASCII without UTF-8. Pure.
#pragma once

#include <span>
#include <string>

namespace primerl {

struct CurveStyle {
  int width = 60;  // characters of the plot, without its axis
  int height = 8;  // lines
  bool utf8 = true;
  std::string indent = "  ";
};

/// `values` from left to right; the i-th is that of step `first_step + i`. Values that are not
/// finite are skipped. If there are more values than columns, neighbours are averaged. The text
/// ends with a newline; it is empty when nothing can be drawn.
///
///   0.62 |          ..--
///        |     ..-''
///   0.31 |_.-''
///        +--------------
///         1          200
std::string draw_curve(std::span<const double> values, int64_t first_step, const CurveStyle& style);

}  // namespace primerl
