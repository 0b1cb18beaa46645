/// stat: totals of a trace per edge and per group, from the indices. Queue times and version lags
/// come from at most kStatSamples messages per edge, evenly spaced. With a filter, totals are
/// counted step by step, from at most twice as many samples. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/query/step_filter.h"
#include "runtime/trace/read/summary.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

struct EdgeStat {
  std::string edge, type;
  uint64_t num_messages = 0, num_bytes = 0, num_failed = 0, num_stored = 0;
  uint64_t num_overwritten = 0;  // sequence numbers that never arrived, on latest_wins links
  uint64_t num_absent = 0;       // the same on other links: the record lacks them
  double per_second = 0;
  uint64_t handler_p50_us = 0, handler_p99_us = 0;
  bool has_queue = false;  // the send time of some messages is known
  uint64_t queue_p50_us = 0, queue_p99_us = 0;
  uint64_t num_sampled = 0;
  bool has_lag = false;  // its messages carry a policy version
  int64_t lag_p50 = 0, lag_max = 0;
};

struct GroupStat {
  std::string group;
  uint64_t first_step = 0, last_step = 0;
  GroupStats messages, timers, turns, others;
};

struct TraceStat {
  /// A filter was used. Then counts of whole links (missing or stored messages) are unknown, and
  /// edges and groups without matching steps are not listed.
  bool is_filtered = false;
  double seconds = 0;
  std::vector<EdgeStat> edges;
  std::vector<GroupStat> groups;
  /// Tenant and version, with the time of its first occurrence.
  std::vector<VersionMark> versions;
  bool replays_from_start = false;
  std::string replay;  // where replay can begin, as text
};

inline constexpr uint64_t kStatSamples = 1024;

TraceStat stat_trace(const Trace& trace);
/// Totals of the steps that `filter` matches; it must have no field conditions.
TraceStat stat_trace(const Trace& trace, const StepFilter& filter);
std::string to_text(const Trace& trace, const TraceStat& stat);
Json to_json(const Trace& trace, const TraceStat& stat);

}  // namespace primerl
