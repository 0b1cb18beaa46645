#include "runtime/monitor/prometheus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "graph/base/assert.h"

namespace primerl {
namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

bool is_name(std::string_view name) {
  const auto may_follow = [](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && is_letter(name.front()) &&
         std::all_of(name.begin(), name.end(), may_follow);
}

// Suffixes of counters, and of the parts of histograms and summaries.
constexpr std::array<std::string_view, 4> kReserved = {"_total", "_count", "_sum", "_bucket"};

bool is_reserved(std::string_view name) {
  return std::any_of(kReserved.begin(), kReserved.end(),
                     [name](std::string_view ending) { return name.ends_with(ending); });
}

/// Escapes the value of a label, or a help text (where quotes are not escaped).
std::string escaped(std::string_view text, bool has_quotes) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '"' && has_quotes)
      out += "\\\"";
    else
      out += c;
  }
  return out;
}

std::string label_text(const PrometheusLabels& labels) {
  std::string text;
  for (const auto& [name, value] : labels) {
    CHECK(is_name(name), fmt::format("'{}' is no name of a label", name));
    text += fmt::format("{}{}=\"{}\"", text.empty() ? "" : ",", name, escaped(value, true));
  }
  return text;
}

/// The labels in braces; nothing without labels.
std::string in_braces(const std::string& labels) {
  return labels.empty() ? "" : "{" + labels + "}";
}

std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);  // the fewest digits that read back the same
}

}  // namespace

void PrometheusText::counter(std::string_view name, std::string_view help) {
  CHECK(name.ends_with("_total"), fmt::format("counter '{}' does not end in _total", name));
  begin(name, "counter", help);
}

void PrometheusText::gauge(std::string_view name, std::string_view help) {
  CHECK(!is_reserved(name), fmt::format("gauge '{}' is named like another kind", name));
  begin(name, "gauge", help);
}

void PrometheusText::histogram(std::string_view name, std::string_view help) {
  CHECK(!is_reserved(name), fmt::format("histogram '{}' is named like a part of one", name));
  begin(name, "histogram", help);
}

void PrometheusText::begin(std::string_view name, std::string_view type, std::string_view help) {
  CHECK(is_name(name), fmt::format("'{}' is no name of a metric", name));
  CHECK(families_.emplace(name).second, fmt::format("metric '{}' was begun twice", name));
  family_ = name;
  samples_.clear();
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, escaped(help, false), name, type);
}

bool PrometheusText::sample(const PrometheusLabels& labels, double value) {
  return write(labels, number_text(value));
}
bool PrometheusText::sample(const PrometheusLabels& labels, uint64_t value) {
  return write(labels, fmt::format("{}", value));
}

bool PrometheusText::write(const PrometheusLabels& labels, std::string_view value) {
  CHECK(!family_.empty(), "a sample before its family");
  const std::string named = label_text(labels);
  if (!samples_.insert(named).second) return false;
  text_ += fmt::format("{}{} {}\n", family_, in_braces(named), value);
  return true;
}

bool PrometheusText::sample(const PrometheusLabels& labels, std::span<const double> bounds,
                            std::span<const uint64_t> counts, double sum) {
  CHECK(!family_.empty(), "a sample before its family");
  CHECK(counts.size() == bounds.size() + 1, "a histogram with other bounds than counts");
  const std::string named = label_text(labels);
  if (!samples_.insert(named).second) return false;
  uint64_t count = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    count += counts[i];
    text_ +=
        fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", family_, named, named.empty() ? "" : ",",
                    i < bounds.size() ? number_text(bounds[i]) : "+Inf", count);
  }
  text_ += fmt::format("{0}_sum{1} {2}\n{0}_count{1} {3}\n", family_, in_braces(named),
                       number_text(sum), count);
  return true;
}

std::string prometheus_name(std::string_view prefix, std::string_view words) {
  std::string name(prefix);
  // Lower case, as is usual for names of metrics.
  for (const char c : words) {
    const bool is_digit = c >= '0' && c <= '9';
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    name += is_letter(lower) || is_digit ? lower : '_';
  }
  if (name.empty() || !is_letter(name.front())) name.insert(0, "_");
  return is_reserved(name) ? name + "_value" : name;
}

}  // namespace primerl
