#include <fmt/format.h>

#include "runtime/cli/commands.h"
#include "runtime/cli/trace_actions.h"
#include "runtime/cli/trace_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/query/stat.h"
#include "runtime/query/step_story.h"
#include "runtime/query/step_text.h"

namespace primerl {
namespace {

struct ListArguments {
  TraceArguments trace;
  FilterArguments filter;
  std::string test;  // of grep
};

int run_list(const ListArguments& arguments, bool with_payloads) {
  const auto opened = open_for_command(arguments.trace.run);
  if (opened.trace == nullptr) return opened.exit_code;
  const Trace& trace = *opened.trace;
  StepQuery query = arguments.filter.resolved();
  if (with_payloads) query.fields.push_back(arguments.test);
  const auto filter = StepFilter::make(trace, query);
  if (!filter.ok()) return fail(filter.error(), kExitBadCommandLine);
  const auto found = find_steps(trace, *filter, static_cast<uint64_t>(arguments.filter.limit));
  if (arguments.trace.json)
    print_json(to_json(trace, found, with_payloads));
  else
    print_text(incomplete_text(trace) + to_text(trace, found, with_payloads));
  return kExitDone;
}

struct StepArguments {
  TraceArguments trace;
  std::string step;
};

int run_cat(const StepArguments& arguments) {
  const auto opened = open_for_command(arguments.trace.run);
  if (opened.trace == nullptr) return opened.exit_code;
  const auto step = find_step(*opened.trace, arguments.step);
  if (!step.ok())
    return fail(step.error(),
                step.error().code() == Code::kCorrupt ? kExitFailed : kExitBadCommandLine);
  if (arguments.trace.json)
    print_json(step_story_json(*opened.trace, *step));
  else
    print_text(step_story_text(*opened.trace, *step));
  return kExitDone;
}

struct StatArguments {
  TraceArguments trace;
  StepQuery query;
};

int run_stat(const StatArguments& arguments) {
  const auto opened = open_for_command(arguments.trace.run);
  if (opened.trace == nullptr) return opened.exit_code;
  const Trace& trace = *opened.trace;
  TraceStat stat;
  if (arguments.query.tenants.empty()) {
    stat = stat_trace(trace);
  } else {
    const auto filter = StepFilter::make(trace, arguments.query);
    if (!filter.ok()) return fail(filter.error(), kExitBadCommandLine);
    stat = stat_trace(trace, *filter);
  }
  if (arguments.trace.json)
    print_json(to_json(trace, stat));
  else
    print_text(to_text(trace, stat));
  return kExitDone;
}

Command list_action() {
  auto arguments = std::make_shared<ListArguments>();
  return {"ls", "lists steps, one a line, in order of time",
          "primerl-graph trace ls runs/latest --node trainer --step 10..20",
          [arguments](Arguments& flags) {
            arguments->trace.declare(flags);
            arguments->filter.declare(flags, false);
          },
          [arguments] { return run_list(*arguments, false); }};
}

Command grep_action() {
  auto arguments = std::make_shared<ListArguments>();
  return {"grep", "finds steps by what their input holds, and shows it",
          "primerl-graph trace grep runs/latest 'reward<0.5' --type TrajectoryGroup",
          [arguments](Arguments& flags) {
            arguments->trace.declare(flags);
            flags.positional(arguments->test, "TEST",
                             "a field of the message: 'reward<0.5', 'kv.id=7', 'end!=0'");
            arguments->filter.declare(flags, true);
          },
          [arguments] { return run_list(*arguments, true); }};
}

Command cat_action() {
  auto arguments = std::make_shared<StepArguments>();
  return {"cat", "shows one step whole: input, what it emitted, what it was told",
          "primerl-graph trace cat runs/latest trainer:12",
          [arguments](Arguments& flags) {
            arguments->trace.declare(flags);
            flags.positional(arguments->step, "STEP", "as in trainer:12");
          },
          [arguments] { return run_cat(*arguments); }};
}

Command stat_action() {
  auto arguments = std::make_shared<StatArguments>();
  return {"stat", "counts what was recorded, edge by edge, and says what is missing",
          "primerl-graph trace stat runs/latest --tenant main",
          [arguments](Arguments& flags) {
            arguments->trace.declare(flags);
            flags.texts(arguments->query.tenants, "--tenant", "NAME", kTenantFlagDoc);
          },
          [arguments] { return run_stat(*arguments); }};
}

}  // namespace

Command trace_command() {
  Command command;
  command.name = "trace";
  command.doc = "looks into what a run recorded";
  command.example = "primerl-graph trace stat runs/latest";
  command.actions = {list_action(),   cat_action(),     grep_action(), stat_action(),
                     why_action(),    after_action(),   diff_action(), export_action(),
                     verify_action(), recover_action(), pack_action(), dump_action()};
  return command;
}

}  // namespace primerl
