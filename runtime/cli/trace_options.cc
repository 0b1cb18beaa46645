#include "runtime/cli/trace_options.h"

#include <limits>

#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {

void TraceArguments::declare(Arguments& flags) {
  flags.positional(run, "RUN", "a run folder, as in runs/latest");
  flags.flag(json, "--json", "prints JSON");
}

OpenedTrace open_for_command(const std::string& run) {
  auto trace = Trace::open(run);
  if (trace.ok()) return {*trace, kExitDone};
  return {nullptr, fail(trace.error(), kExitFailed)};
}

void FilterArguments::declare(Arguments& flags, bool has_fields) {
  constexpr double kForever = std::numeric_limits<double>::infinity();
  flags.texts(query.nodes, "--node", "NAME", "of these nodes, instances or groups only");
  flags.texts(query.edges, "--edge", "EDGE",
              "inputs over these edges only: 'a.x -> b.y' or a port");
  flags.texts(query.types, "--type", "NAME", "inputs of these message types only");
  flags.texts(query.tenants, "--tenant", "NAME", kTenantFlagDoc);
  if (has_fields)
    flags.texts(query.fields, "--field", "TEST", "inputs whose content passes, as in 'reward<0.5'");
  flags.integer(session, "--session", "N", "inputs that name this session or trajectory", 0,
                INT64_MAX);
  flags.text(steps, "--step", "RANGE", "steps 88, 10..20, 10.. or ..20");
  flags.number(from_seconds, "--from", "SECONDS", "from this time after the start of the run", 0,
               kForever);
  flags.number(to_seconds, "--to", "SECONDS", "up to this time", 0, kForever);
  flags.flag(query.is_failed, "--failed", "failed handlers only");
  flags.integer(limit, "--limit", "N", "shows at most so many steps", 1, INT64_MAX);
}

StepQuery FilterArguments::resolved() const {
  StepQuery resolved = query;
  if (session >= 0) resolved.session = static_cast<uint64_t>(session);
  if (!steps.empty()) resolved.steps = steps;
  if (from_seconds >= 0) resolved.from_seconds = from_seconds;
  if (to_seconds >= 0) resolved.to_seconds = to_seconds;
  return resolved;
}

}  // namespace primerl
