/// cat: everything in the trace about one step: its input, emissions and notes. Pure functions over
/// an open Trace.
#pragma once

#include <string>

#include "runtime/trace/read/trace.h"

namespace primerl {

std::string step_story_text(const Trace& trace, const TraceStep& step);
Json step_story_json(const Trace& trace, const TraceStep& step);

}  // namespace primerl
