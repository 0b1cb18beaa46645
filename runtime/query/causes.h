/// why and after: the causes of a step back to the sources, and its effects.
///
/// The causes of a step are: the step that its input names as its cause; and the steps that its
/// input or its stored emissions refer to (a batch answers each of its groups, so it refers to all
/// of them). If neither is known (a work call, a timer), they are the messages that its group
/// handled since the last work call that sent something, at most 64, marked as program order. Pure
/// functions over an open Trace.
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/read/trace.h"

namespace primerl {

enum class CauseKind { kAsked, kInput, kAnswers, kRefers, kProgramOrder };
std::string_view to_string(CauseKind kind);

/// One step of a chain; entries are in display order.
struct ChainEntry {
  TraceStep step;
  CauseKind kind = CauseKind::kAsked;
  int64_t depth = 0;
  bool is_seen = false;     // its own causes are shown at another entry, nearer to the start
  bool is_missing = false;  // its record is missing; only group and step are known
};
struct Chain {
  std::vector<ChainEntry> entries;
  bool is_cut = false;  // it was cut at the limit
  uint64_t limit = 0;
  uint64_t num_unknown = 0;  // steps whose cause is not in the record
};

/// At most `limit` entries, nearest first, in tree order. `program_order`: how many earlier steps
/// of its group are also shown for each step that has another cause.
Chain why(const Trace& trace, const TraceStep& step, uint64_t limit, uint64_t program_order = 0);

/// Deliveries that a step caused, then deliveries that those caused, in order of time; at most
/// `limit` entries.
Chain after(const Trace& trace, const TraceStep& step, uint64_t limit);

std::string to_text(const Trace& trace, const Chain& chain);
Json to_json(const Trace& trace, const Chain& chain);

}  // namespace primerl
