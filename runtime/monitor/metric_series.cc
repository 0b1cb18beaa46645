#include "runtime/monitor/metric_series.h"

#include <cmath>

#include "graph/base/json.h"
#include "runtime/store/line_reader.h"

namespace primerl {
namespace {

// Larger values are a fault, like NaN, and the difference of two of them could not be drawn.
constexpr double kMetricMax = 1e150;

bool is_head_of_line(std::string_view name) {
  return name == "step" || name == "time" || name == "tenant";
}

Status add_metrics_line(const Json& line, const std::set<std::string>& wanted,
                        std::map<std::string, TenantSeries>& tenants) {
  ASSIGN_OR_RETURN(const int64_t step, line.get_int("step"));
  ASSIGN_OR_RETURN(const double time, line.get_double("time"));
  ASSIGN_OR_RETURN(const std::string tenant, line.get_string("tenant"));
  TenantSeries& of_tenant = tenants[tenant];
  for (const auto& [name, value] : line.as_object()) {
    if (is_head_of_line(name)) continue;
    of_tenant.names.insert(name);
    if (!wanted.contains(name)) continue;
    MetricSeries& series = of_tenant.series[name];
    // Steps that a resumed run makes again replace those that it made before.
    while (!series.empty() && series.back().step >= step) series.pop_back();
    if (value.is_number() && std::abs(value.as_double()) <= kMetricMax)
      series.push_back({step, time, value.as_double()});
  }
  return ok();
}

}  // namespace

Result<std::map<std::string, TenantSeries>> read_metric_series(
    const std::filesystem::path& metrics_file, const std::set<std::string>& wanted) {
  ASSIGN_OR_RETURN(LineReader lines,
                   LineReader::open(metrics_file, LineReader::Order::kOldestFirst));
  std::map<std::string, TenantSeries> tenants;
  std::string text;
  for (int64_t number = 1;; ++number) {
    ASSIGN_OR_RETURN(const bool has_line, lines.next(text));
    if (!has_line) break;
    const std::string where = metrics_file.string() + ":" + std::to_string(number);
    auto line = parse_json(text, where);
    if (!line.ok()) return error(Code::kCorrupt, "{}", line.error().text());
    if (!line->is_object()) return error(Code::kCorrupt, "{}: the line is no object", where);
    if (const Status added = add_metrics_line(*line, wanted, tenants); !added.ok())
      return error(Code::kCorrupt, "{}: {}", where, added.error().text());
  }
  for (auto& [name, tenant] : tenants)
    std::erase_if(tenant.series, [](const auto& one) { return one.second.empty(); });
  return tenants;
}

}  // namespace primerl
