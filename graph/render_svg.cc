// The drawing of a plan as SVG: forward edges solid, feedback edges dashed, in the colour of their
// sender.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "graph/base/xml_text.h"
#include "graph/render.h"
#include "graph/render_drawing.h"
#include "graph/render_layout.h"

namespace primerl {
namespace {

// Dark enough on white, and distinguishable by people who do not see red and green.
constexpr std::array<std::string_view, 7> kColours = {"#0b5394", "#b45309", "#0f766e", "#9d174d",
                                                      "#4d7c0f", "#6d28d9", "#57534e"};

std::string_view colour_of(size_t node) { return kColours[node % kColours.size()]; }

/// Corners are rounded by at most 6 pixels.
std::string path_of(const std::vector<DrawnPoint>& line) {
  const auto toward = [](DrawnPoint at, DrawnPoint other) {
    const int dx = other.x - at.x, dy = other.y - at.y;
    const int reach = std::min(6, (std::abs(dx) + std::abs(dy)) / 2);
    return DrawnPoint{at.x + std::clamp(dx, -reach, reach), at.y + std::clamp(dy, -reach, reach)};
  };
  std::string path = fmt::format("M{} {}", line.front().x, line.front().y);
  for (size_t i = 1; i + 1 < line.size(); ++i) {
    const DrawnPoint before = toward(line[i], line[i - 1]), after = toward(line[i], line[i + 1]);
    path += fmt::format(" L{} {} Q{} {} {} {}", before.x, before.y, line[i].x, line[i].y, after.x,
                        after.y);
  }
  return path + fmt::format(" L{} {}", line.back().x, line.back().y);
}

std::string header(const Plan& plan, const Drawing& drawing) {
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" font-family=\"Helvetica, Arial, sans-serif\">\n"
      "  <title>{2}</title>\n  <defs>\n",
      drawing.width, drawing.height, xml_text(plan.settings.name));
  for (size_t i = 0; i < kColours.size(); ++i)
    text += fmt::format(
        "    <marker id=\"arrow{}\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" "
        "markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 0L8 4L0 "
        "8z\" fill=\"{}\"/></marker>\n",
        i, kColours[i]);
  return text + fmt::format(
                    "  </defs>\n  <rect width=\"{}\" height=\"{}\" fill=\"white\"/>\n"
                    "  <text x=\"{}\" y=\"{}\" font-size=\"16\" font-weight=\"bold\">{}</text>\n",
                    drawing.width, drawing.height, drawing.heading.x, drawing.heading.y,
                    xml_text(plan.settings.name));
}

std::string place_text(const Drawing::Place& place) {
  return fmt::format(
      "  <rect class=\"place\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"10\" "
      "fill=\"#f5f6f8\" stroke=\"#a8b0bc\"/>\n",
      place.box.x, place.box.y, place.box.width, place.box.height);
}

std::string place_name(const Drawing::Place& place) {
  return fmt::format(
      "  <text x=\"{}\" y=\"{}\" font-size=\"{}\" font-weight=\"bold\" "
      "fill=\"#475569\">{}</text>\n",
      place.label.x, place.label.bottom() - 4, kPlaceSize, xml_text(place.text));
}

std::string edge_text(const Drawing::Edge& edge, size_t sender, bool feedback) {
  return fmt::format(
      "  <path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{} "
      "marker-end=\"url(#arrow{})\"/>\n",
      path_of(edge.line), colour_of(sender), feedback ? "1.2" : "2",
      feedback ? " stroke-dasharray=\"5 3\"" : "", sender % kColours.size());
}

std::string label_text(const Drawing::Edge& edge, size_t sender, std::string_view name) {
  return fmt::format(
      "  <text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"middle\" fill=\"{}\" "
      "stroke=\"#f5f6f8\" stroke-width=\"3\" paint-order=\"stroke\">{}</text>\n",
      edge.label.x + edge.label.width / 2, edge.label.bottom() - 2, kLabelSize, colour_of(sender),
      xml_text(name));
}

std::string node_text(const Plan& plan, const Drawing& drawing, size_t index) {
  const Drawing::Node& node = drawing.nodes[index];
  const int middle = node.box.x + node.box.width / 2;
  const int height = 20 + 13 * static_cast<int>(node.traits.size());
  int y = node.box.y + (node.box.height - height) / 2 + 15;
  std::string text = fmt::format(
      "  <rect class=\"node\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"6\" fill=\"white\" "
      "stroke=\"{}\" stroke-width=\"1.5\"/>\n"
      "  <text x=\"{}\" y=\"{}\" font-size=\"{}\" font-weight=\"bold\" "
      "text-anchor=\"middle\">{}</text>\n",
      node.box.x, node.box.y, node.box.width, node.box.height, colour_of(index), middle, y,
      kNameSize, xml_text(plan.nodes[index].name));
  for (const auto& trait : node.traits)
    text += fmt::format(
        "  <text x=\"{}\" y=\"{}\" font-size=\"{}\" text-anchor=\"middle\" "
        "fill=\"#475569\">{}</text>\n",
        middle, y += 13, kTraitSize, xml_text(trait));
  return text;
}

/// The meaning of solid and dashed lines.
std::string legend(const Drawing& drawing) {
  const int y = drawing.height - 24;
  std::string text;
  int x = drawing.heading.x;
  for (const bool feedback : {false, true}) {
    text += fmt::format(
        "  <path d=\"M{} {} h36\" stroke=\"#1f2937\" stroke-width=\"{}\"{}/>\n"
        "  <text x=\"{}\" y=\"{}\" font-size=\"11\" fill=\"#475569\">{}</text>\n",
        x, y, feedback ? "1.2" : "2", feedback ? " stroke-dasharray=\"5 3\"" : "", x + 44, y + 4,
        feedback ? "feedback: never stops its sender" : "forward: stops its sender while full");
    x += 240;
  }
  return text;
}

}  // namespace

std::string render_svg(const Plan& plan) {
  const Drawing drawing = draw(plan);
  std::string text = header(plan, drawing);
  for (const auto& place : drawing.places) text += place_text(place);
  for (size_t i = 0; i < plan.edges.size(); ++i)
    text += edge_text(drawing.edges[i], plan.edges[i].from.index(), plan.edges[i].feedback);
  for (const auto& place : drawing.places) text += place_name(place);
  for (size_t i = 0; i < plan.edges.size(); ++i)
    text +=
        label_text(drawing.edges[i], plan.edges[i].from.index(), output_name(plan, plan.edges[i]));
  for (size_t node = 0; node < plan.nodes.size(); ++node) text += node_text(plan, drawing, node);
  return text + legend(drawing) + "</svg>\n";
}

}  // namespace primerl
