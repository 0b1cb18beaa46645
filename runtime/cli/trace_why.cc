#include "runtime/cli/trace_actions.h"
#include "runtime/cli/trace_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/query/causes.h"
#include "runtime/query/step_text.h"

namespace primerl {
namespace {

struct ChainArguments {
  TraceArguments trace;
  std::string step;
  int64_t limit = 200;
  int64_t program_order = 0;

  void declare(Arguments& flags) {
    trace.declare(flags);
    flags.positional(step, "STEP", "as in trainer:12");
    flags.integer(limit, "--limit", "N", "shows at most so many steps", 1, INT64_MAX);
  }
};

int run_chain(const ChainArguments& arguments, bool is_back) {
  const auto opened = open_for_command(arguments.trace.run);
  if (opened.trace == nullptr) return opened.exit_code;
  const Trace& trace = *opened.trace;
  const auto step = find_step(trace, arguments.step);
  if (!step.ok())
    return fail(step.error(),
                step.error().code() == Code::kCorrupt ? kExitFailed : kExitBadCommandLine);
  const auto limit = static_cast<uint64_t>(arguments.limit);
  const Chain chain = is_back
                          ? why(trace, *step, limit, static_cast<uint64_t>(arguments.program_order))
                          : after(trace, *step, limit);
  if (arguments.trace.json)
    print_json(to_json(trace, chain));
  else
    print_text(incomplete_text(trace) + to_text(trace, chain));
  return kExitDone;
}

}  // namespace

Command why_action() {
  auto arguments = std::make_shared<ChainArguments>();
  return {"why", "walks the causes of a step back to the sources",
          "primerl-graph trace why runs/latest trainer:12",
          [arguments](Arguments& flags) {
            arguments->declare(flags);
            flags.integer(arguments->program_order, "--program-order", "N",
                          "shows so many earlier steps of each group too", 0, 1000);
          },
          [arguments] { return run_chain(*arguments, true); }};
}

Command after_action() {
  auto arguments = std::make_shared<ChainArguments>();
  return {"after", "walks forward: what a step led to",
          "primerl-graph trace after runs/latest rollout.main:88",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] { return run_chain(*arguments, false); }};
}

}  // namespace primerl
