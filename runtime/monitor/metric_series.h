/// Reads metrics.jsonl as series of points, one for each metric of a tenant, also while the run
/// writes it. Memory: the points of the wanted metrics, and the names of all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/base/result.h"

namespace primerl {

struct MetricPoint {
  int64_t step = 0;
  double time = 0;  // seconds since the start of the run
  double value = 0;
};
/// Steps rise. Values are finite and at most 1e150: a step without such a
/// value has no point.
using MetricSeries = std::vector<MetricPoint>;

struct TenantSeries {
  std::map<std::string, MetricSeries> series;  // by metric; those that have a point
  std::set<std::string> names;                 // of all metrics in the file
};

/// By tenant. If a resumed run made steps again, their last lines count. kNotFound: there is no
/// file. kCorrupt: a line is no object with step, time and tenant; the error has its number.
Result<std::map<std::string, TenantSeries>> read_metric_series(
    const std::filesystem::path& metrics_file, const std::set<std::string>& wanted);

}  // namespace primerl
