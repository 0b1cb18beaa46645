/// PrometheusText: the text exposition format 0.0.4, family by family.
///
///   # HELP primerl_edge_sent_messages_total Messages sent over the edge.
///   # TYPE primerl_edge_sent_messages_total counter
///   primerl_edge_sent_messages_total{edge="env.task -> rollout.task",process="driver"} 128
///
/// Names follow the rules that `promtool check metrics` checks: counters and only counters end in
/// _total; units are base units (seconds, bytes) and come last. A plain value, for one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primerl {

/// A count as the value of a sample.
double as_number(auto value) { return static_cast<double>(value); }

using PrometheusLabels = std::vector<std::pair<std::string_view, std::string_view>>;

class PrometheusText {
 public:
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  /// Begins a family; its samples follow. A name that breaks the rules, or is used twice, is a bug
  /// (CHECK). Names made from other text must go through prometheus_name() first.
  void counter(std::string_view name, std::string_view help);
  void gauge(std::string_view name, std::string_view help);
  void histogram(std::string_view name, std::string_view help);
  /// Adds one sample to the newest family. False: the family already has one with these labels,
  /// which stays.
  bool sample(const PrometheusLabels& labels, double value);
  bool sample(const PrometheusLabels& labels, uint64_t value);
  /// Adds one histogram: its upper bounds, and the count of each bucket, not cumulative, with one
  /// more for values above the last bound.
  bool sample(const PrometheusLabels& labels, std::span<const double> bounds,
              std::span<const uint64_t> counts, double sum);

  const std::string& text() const { return text_; }

 private:
  void begin(std::string_view name, std::string_view type, std::string_view help);
  bool write(const PrometheusLabels& labels, std::string_view value);

  std::string text_;
  std::string family_;
  std::set<std::string, std::less<>> families_;
  std::set<std::string> samples_;  // labels of family_
};

/// Makes a gauge's name of `prefix` and `words`. An invalid character becomes '_', and a suffix of
/// another kind of metric is followed by "_value". Different words may give the same name.
std::string prometheus_name(std::string_view prefix, std::string_view words);

}  // namespace primerl
