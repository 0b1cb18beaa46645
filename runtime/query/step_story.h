/// cat: everything the trace has of one step: its input, what it emitted, what it was told.
/// Pure functions over an open Trace.
#pragma once

#include <string>

#include "runtime/trace/read/trace.h"

namespace primerl {

std::string step_story_text(const Trace& trace, const TraceStep& step);
Json step_story_json(const Trace& trace, const TraceStep& step);

}  // namespace primerl
