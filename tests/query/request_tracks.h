/// RequestTracks: the asynchronous spans of a Chrome export, read back, and their faults: spans
/// that are not nested, end twice or never, or run backwards.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/query/chrome_trace.h"

namespace primerl {

struct RequestSpan {
  std::string name, facts;
  double begin_us = 0, end_us = 0;
  size_t depth = 0;
};

struct RequestTracks {
  std::map<std::pair<std::string, std::string>, std::vector<RequestSpan>> tracks;  // category, id
  std::vector<std::string> faults;

  int num_of(const std::string& category, const std::string& name) const;
  /// Arguments of the last span of this name; "" for none.
  std::string facts(const std::string& category, const std::string& id,
                    const std::string& name) const;
  /// One line a span, indented by depth.
  std::string text() const;
};

/// Reads a JSON list of events; only "b" and "e" are used.
RequestTracks tracks_in(const std::string& events);
RequestTracks tracks_of(const Trace& trace, const ChromeOptions& options);

}  // namespace primerl
