/// The common part of the actions of `trace`: the run, the filter flags, opening the trace, and
/// reporting errors.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/program/command_line.h"
#include "runtime/query/step_filter.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

inline constexpr const char* kTenantFlagDoc =
    "steps of these tenants only: their messages and their own actors; alice~2: a later use of the "
    "name";

struct TraceArguments {
  std::string run;
  bool json = false;

  void declare(Arguments& flags);
};

/// Opens the trace. If that fails, it reports why and returns the exit code.
struct OpenedTrace {
  std::shared_ptr<const Trace> trace;  // null: exit with `exit_code`
  int exit_code = 0;
};
OpenedTrace open_for_command(const std::string& run);

/// The flags of StepQuery.
struct FilterArguments {
  StepQuery query;
  int64_t session = -1;
  std::string steps;
  double from_seconds = -1, to_seconds = -1;
  int64_t limit = 100;

  void declare(Arguments& flags, bool has_fields);
  StepQuery resolved() const;
};

}  // namespace primerl
