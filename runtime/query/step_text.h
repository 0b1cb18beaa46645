/// Text and JSON of steps and messages of a trace, equal in every query. Pure functions over an
/// open Trace.
#pragma once

#include <string>

#include "runtime/trace/read/json_differences.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// "trainer:412" for a work call, "rollout.main:88" for a handler; parse_step_name() reads it.
std::string step_name(const Trace& trace, const TraceStep& step);
/// For a cause: "rollout.main:88", or "-" for none.
std::string step_name(const TraceCatalog& catalog, const StepRef& step);
/// "12.345678": seconds since the run began.
double seconds_of(const TraceCatalog& catalog, Time time);
std::string time_text(const TraceCatalog& catalog, Time time);
/// "group <- rollout.main #17", "timer stall", "work", "tenant alice~2 joins slot 1".
std::string input_text(const Trace& trace, const TraceStep& step);
/// The tenant of the step's message or event: "alice", of a later use of the name "alice~2".
std::string tenant_text(const Trace& trace, const TraceStep& step);
/// "rollout.group -> trainer.group incarnation 1 #17".
std::string message_text(const TraceCatalog& catalog, const MessageKey& key);
/// One line, without a newline.
std::string step_line(const Trace& trace, const TraceStep& step);
Json step_json(const Trace& trace, const TraceStep& step);
Json key_json(const TraceCatalog& catalog, const MessageKey& key);
Json fault_json(const TraceCatalog& catalog, const TraceFault& fault);
MessageKey key_of(const TraceStep& step);

/// The input of a step as JSON; kNotFound when it was not stored.
Result<Json> input_json(const Trace& trace, const TraceStep& step);

/// "INCOMPLETE: ..." with one line per fault, or "" for a complete trace.
std::string incomplete_text(const Trace& trace);

/// "3 starts, " for a run whose record is in several folders; "" for one folder.
std::string starts_text(size_t num_starts);

/// 1.5 MB, 12 us: for people.
std::string rounded_bytes(uint64_t num_bytes);
std::string micros_text(double micros);
/// JSON on several lines, but lists of numbers and texts on one.
std::string pretty_json(const Json& json, const std::string& indent);

/// Finds the step that `text` names; the error lists the existing steps.
Result<TraceStep> find_step(const Trace& trace, std::string_view text);

}  // namespace primerl
