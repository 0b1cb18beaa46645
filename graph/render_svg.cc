// The plan as SVG: layers as columns, forward edges solid, feedback dashed and bent below.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/render.h"
#include "graph/render_layout.h"

namespace primerl {
namespace {

constexpr int kBoxWidth = 170, kBoxHeight = 52, kGapX = 110, kGapY = 60, kMargin = 40;

struct Corner {
  int x = 0, y = 0;
};

std::string escaped(std::string_view text) {
  std::string clean;
  for (const char c : text) {
    if (c == '<')
      clean += "&lt;";
    else if (c == '>')
      clean += "&gt;";
    else if (c == '&')
      clean += "&amp;";
    else
      clean += c;
  }
  return clean;
}

std::string edge_path(Corner from, Corner to, bool feedback, std::string_view name) {
  const int y1 = from.y + kBoxHeight / 2, y2 = to.y + kBoxHeight / 2;
  int x1 = from.x + kBoxWidth, x2 = to.x;
  std::string path;
  int label_x = (x1 + x2) / 2, label_y = (y1 + y2) / 2 - 6;
  if (feedback || x2 <= x1) {
    x1 = from.x + kBoxWidth / 2;
    x2 = to.x + kBoxWidth / 2;
    const int below = std::max(from.y, to.y) + kBoxHeight + 20 + std::abs(x1 - x2) / 8;
    path = fmt::format("M{} {} C{} {} {} {} {} {}", x1, from.y + kBoxHeight, x1, below, x2, below,
                       x2, to.y + kBoxHeight);
    label_x = (x1 + x2) / 2;
    label_y = (std::max(from.y, to.y) + kBoxHeight + 3 * below) / 4;
  } else {
    path = fmt::format("M{} {} C{} {} {} {} {} {}", x1, y1, x1 + kGapX / 2, y1, x2 - kGapX / 2, y2,
                       x2, y2);
  }
  return fmt::format(
      "  <path d=\"{}\" fill=\"none\" stroke=\"{}\"{} marker-end=\"url(#arrow)\"/>\n"
      "  <text x=\"{}\" y=\"{}\" font-size=\"11\" text-anchor=\"middle\" fill=\"#555\">{}</text>\n",
      path, feedback ? "#999" : "#333", feedback ? " stroke-dasharray=\"5 4\"" : "", label_x,
      label_y, escaped(name));
}

}  // namespace

std::string render_svg(const Plan& plan) {
  const auto layers = layers_of(plan);
  std::vector<Corner> corners(plan.nodes.size());
  size_t tallest = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    tallest = std::max(tallest, layers[layer].size());
    for (size_t row = 0; row < layers[layer].size(); ++row)
      corners[layers[layer][row]] = {kMargin + static_cast<int>(layer) * (kBoxWidth + kGapX),
                                     kMargin + static_cast<int>(row) * (kBoxHeight + kGapY)};
  }
  const int width = 2 * kMargin + static_cast<int>(layers.size()) * (kBoxWidth + kGapX);
  // Feedback bends below the lowest box.
  const int height = 2 * kMargin + static_cast<int>(tallest) * (kBoxHeight + kGapY) + width / 8;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"Helvetica, sans-serif\">\n"
      "  <title>{2}</title>\n"
      "  <defs><marker id=\"arrow\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"8\" "
      "markerHeight=\"8\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" "
      "fill=\"#333\"/></marker></defs>\n"
      "  <rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height, escaped(plan.settings.name));
  for (const auto& edge : plan.edges)
    text += edge_path(corners[edge.from.index()], corners[edge.to.index()], edge.feedback,
                      output_name(plan, edge));
  for (size_t node = 0; node < plan.nodes.size(); ++node) {
    const Corner at = corners[node];
    text += fmt::format(
        "  <rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"#eef3fb\" "
        "stroke=\"#345\"/>\n"
        "  <text x=\"{}\" y=\"{}\" font-size=\"14\" text-anchor=\"middle\">{}</text>\n"
        "  <text x=\"{}\" y=\"{}\" font-size=\"9\" text-anchor=\"middle\" "
        "fill=\"#555\">{}</text>\n",
        at.x, at.y, kBoxWidth, kBoxHeight, at.x + kBoxWidth / 2, at.y + 22,
        escaped(plan.nodes[node].name), at.x + kBoxWidth / 2, at.y + 40,
        escaped(traits_of(plan, plan.nodes[node])));
  }
  return text + "</svg>\n";
}

}  // namespace primerl
