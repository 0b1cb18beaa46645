/// export --format chrome: a trace as the JSON that Perfetto and chrome://tracing open. It has one
/// track per instance, one slice per handler, and arrows from emission to delivery. It also has
/// counters for each group's waiting messages and for policy versions, and spans of requests and
/// rollouts (request_spans.h). Streamed, never completely in memory.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "runtime/query/step_filter.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// A larger export needs a time range.
inline constexpr uint64_t kChromeBytesMax = uint64_t{1} << 30;

struct ChromeOptions {
  Time from = Time::from_nanoseconds(INT64_MIN);
  Time to = Time::from_nanoseconds(INT64_MAX);
  bool has_range = false;            // then the size is not limited
  std::optional<StepFilter> filter;  // only steps that match it
};

/// Writes in pieces; `write` returns false to stop (a full disk), which is kIo. kExhausted without
/// a range when the JSON would be larger than kChromeBytesMax.
Status write_chrome_trace(const Trace& trace, const ChromeOptions& options,
                          const std::function<bool(std::string_view)>& write);

}  // namespace primerl
