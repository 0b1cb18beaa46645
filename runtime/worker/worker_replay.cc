#include "runtime/worker/worker_replay.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "graph/base/counted.h"
#include "graph/base/shell_word.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/program/replay_options.h"
#include "runtime/program/signals.h"
#include "runtime/replay/bisect.h"
#include "runtime/replay/replay_fixture.h"
#include "runtime/replay/replay_prompt.h"
#include "runtime/replay/replay_session.h"

namespace primerl {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds of the recorded run, from the first step that is replayed to its last.
double recorded_seconds(const ReplaySession& session) {
  const Trace& trace = *session.trace;
  Time first = Time::from_nanoseconds(INT64_MAX);
  Time last;
  for (uint32_t i = 0; i < session.plan->groups.size(); ++i) {
    const GroupId group(i);
    if (trace.last_step(group) == 0) continue;
    const uint64_t begin = std::max(trace.first_step(group), session.cuts.first_step(group));
    if (const auto step = trace.step(group, begin)) first = std::min(first, step->began);
    if (const auto step = trace.step(group, trace.last_step(group)))
      last = std::max(last, step->began + step->duration);
  }
  return first > last ? 0 : (last - first).to_seconds();
}

Json to_json(const Plan& plan, const Divergence& divergence) {
  return Json::object()
      .set("kind", to_string(divergence.kind))
      .set("group", plan.group(divergence.group).name)
      .set("step", divergence.step)
      .set("what", divergence.what)
      .set("details", Json::list(divergence.details));
}

Json to_json(const ReplaySession& session, const ReplayReport& report, double seconds) {
  const Plan& plan = *session.plan;
  Json groups = Json::array();
  for (uint32_t i = 0; i < plan.groups.size(); ++i)
    groups.push_back(Json::object()
                         .set("group", plan.groups[i].name)
                         .set("real", bool{session.is_real[i]})
                         .set("steps", report.num_steps[i])
                         .set("recorded_steps", session.trace->last_step(GroupId(i))));
  Json divergences = Json::array();
  for (const auto& divergence : report.divergences)
    divergences.push_back(to_json(plan, divergence));
  std::vector<std::string> notes = session.reasons;
  notes.insert(notes.end(), report.notes.begin(), report.notes.end());
  return Json::object()
      .set("schema", "primerl.replay/1")
      .set("identical", report.is_identical())
      .set("steps", report.total_steps())
      .set("messages_compared", report.num_messages_compared)
      .set("near", report.near)
      .set("seconds", seconds)
      .set("recorded_seconds", recorded_seconds(session))
      .set("groups", std::move(groups))
      .set("divergences", std::move(divergences))
      .set("notes", Json::list(notes));
}

std::string text_of(const ReplaySession& session, const ReplayReport& report, double seconds) {
  const Plan& plan = *session.plan;
  std::string text;
  for (const auto& reason : session.reasons) text += fmt::format("note: {}\n", reason);
  for (const auto& note : report.notes) text += fmt::format("note: {}\n", note);
  const double recorded = recorded_seconds(session);
  text += fmt::format("{}, {} compared in {:.2f} s", counted(report.total_steps(), "step"),
                      counted(report.num_messages_compared, "message"), seconds);
  if (recorded > 0 && seconds > 0)
    text +=
        fmt::format(" (recorded: {:.2f} s, {:.1f} times as long)", recorded, recorded / seconds);
  text += "\n";
  if (!report.near.empty()) text += fmt::format("near: {}\n", report.near);
  if (report.is_identical())
    return text + (report.near.empty() ? "identical\n" : "identical within the tolerance\n");
  text += "diverged, first here:\n" + divergence_text(plan, report.divergences.front());
  if (report.divergences.size() > 1)
    text += fmt::format("and independently of it in {} more actor groups:\n",
                        report.divergences.size() - 1);
  for (size_t i = 1; i < report.divergences.size(); ++i)
    text += divergence_text(plan, report.divergences[i]);
  return text + fmt::format("see `primerl-graph trace why {} {}:{}`\n",
                            shell_word(session.trace->folder().parent_path().string()),
                            plan.group(report.divergences.front().group).name,
                            report.divergences.front().step);
}

Json to_json(const WrittenFixture& fixture) {
  return Json::object()
      .set("folder", fixture.folder.string())
      .set("test", fixture.test_file.string())
      .set("group", fixture.group)
      .set("last_step", fixture.last_step)
      .set("depth", fixture.depth)
      .set("bytes", fixture.num_bytes);
}

std::string text_of(const WrittenFixture& fixture) {
  return fmt::format(
      "fixture: steps 1 to {} of '{}' in {} ({} bytes); its README.md says how to add the test\n",
      fixture.last_step, fixture.group, fixture.folder.string(), fixture.num_bytes);
}

/// Prints the report, and writes the fixture if one was requested.
int finish(const ReplayArguments& arguments, const ReplaySession& session, const ReplaySetup& setup,
           const ReplayReport& report, double seconds) {
  Json json = to_json(session, report, seconds);
  std::string text = text_of(session, report, seconds);
  Status fault = session.process_services->fault();
  if (!fault.ok()) fault = std::move(fault).error().while_doing("keeping what the replay said");
  int code = report.is_identical() ? kExitDone : kExitDiverged;
  if (!fault.ok()) code = kExitFailed;
  if (!arguments.fixture.empty()) {
    std::optional<GroupId> chosen;
    if (!arguments.node.empty()) chosen = *find_group(*session.plan, arguments.node);
    const auto fixture = write_fixture(session, setup, report, chosen, arguments.fixture);
    if (fixture.ok()) {
      json.set("fixture", to_json(*fixture));
      text += text_of(*fixture);
    } else {
      code = kExitBadConfiguration;
      if (fault.ok()) fault = fixture.error();
    }
  }
  if (arguments.json)
    print_json(json);
  else
    print_text(text);
  return fault.ok() ? code : fail(fault.error(), code);
}

int run_replay(const ReplayArguments& arguments) {
  report_file_limits();
  const ReplayRequest request = {.run = arguments.run,
                                 .depth = arguments.depth,
                                 .node = arguments.node,
                                 .tenant = arguments.tenant,
                                 .sets = arguments.sets,
                                 .out = arguments.out,
                                 .from = arguments.from};
  auto record = open_record(request);
  if (!record.ok()) return fail(record.error(), kExitBadConfiguration);
  if (const Status named = check_names(*record, request); !named.ok())
    return fail(named.error(), kExitBadCommandLine);
  auto opened = open_replay(std::move(record).value(), request);
  if (!opened.ok()) return fail(opened.error(), kExitBadConfiguration);
  const ReplaySession& session = *opened;
  ReplaySetup setup = session.setup(static_cast<uint32_t>(arguments.threads));
  if (!arguments.node.empty() && arguments.stop_at > 0) {
    auto group = find_group(*session.plan, arguments.node);
    const auto excerpt = session.trace->excerpt();
    const auto last =
        static_cast<int64_t>(excerpt ? excerpt->last_step : session.trace->last_step(*group));
    if (arguments.stop_at > last)
      return fail(error(Code::kInvalid, "--stop-at {} is beyond the record: '{}' has {} steps",
                        arguments.stop_at, arguments.node, last),
                  kExitBadCommandLine);
    if (const uint64_t first = session.cuts.first_step(*group);
        std::cmp_less_equal(arguments.stop_at, first) && !session.cuts.empty())
      return fail(error(Code::kInvalid,
                        "--stop-at {}: the replay begins with step {} of '{}', which is not before",
                        arguments.stop_at, first, arguments.node),
                  kExitBadCommandLine);
    setup.options.stop_group = *group;
    setup.options.stop_step = static_cast<uint64_t>(arguments.stop_at) - 1;
  }
  if (arguments.is_stepped) return step_by_hand(session, setup, std::cin);
  const auto start = std::chrono::steady_clock::now();
  auto replay = Replay::make(setup);
  if (!replay.ok()) return fail(replay.error(), kExitBadConfiguration);
  auto report = (*replay)->run();
  if (!report.ok()) {
    const int code = fail(report.error(), kExitFailed);
    if (report.error().code() == Code::kDeadline) std::_Exit(code);  // the handler's thread is lost
    return code;
  }
  return finish(arguments, session, setup, *report, seconds_since(start));
}

int run_bisect(const BisectArguments& arguments) {
  const auto predicate = parse_predicate(arguments.until);
  if (!predicate.ok()) return fail(predicate.error(), kExitBadCommandLine);
  const auto trace = Trace::open(arguments.run);
  if (!trace.ok()) return fail(trace.error(), kExitBadConfiguration);
  const auto result = bisect(arguments.run, *predicate);
  if (!result.ok())
    return fail(result.error(), result.error().code() == Code::kNotFound ? kExitBadCommandLine
                                                                         : kExitBadConfiguration);
  const auto& found = result->found;
  const std::string name =
      found ? step_text((*trace)->catalog(), found->group, found->step) : std::string();
  if (arguments.json) {
    Json json = Json::object()
                    .set("schema", "primerl.bisect/1")
                    .set("until", arguments.until)
                    .set("found", found.has_value())
                    .set("looked_at", result->num_looked_at)
                    .set("notes", Json::list(result->notes));
    if (found) json.set("step", name).set("value", found->value).set("what", found->what);
    print_json(json);
  } else {
    for (const auto& note : result->notes) fmt::print("note: {}\n", note);
    if (found)
      fmt::print("{}: {} = {}\nsee `primerl-graph trace why {} {}`\n", name, found->what,
                 found->value, shell_word(arguments.run), shell_word(name));
    else
      fmt::print("never: looked at {} values of '{}.{}'\n", result->num_looked_at, predicate->node,
                 predicate->path);
  }
  return found ? kExitDone : kExitFailed;
}

}  // namespace

Command worker_replay_command() {
  auto arguments = std::make_shared<ReplayArguments>();
  return {"replay", "replays a recorded run and compares every message",
          "primerl-worker replay runs/latest",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] {
            if (const Status valid = arguments->validate(); !valid.ok())
              return fail(valid.error(), kExitBadCommandLine);
            return run_replay(*arguments);
          }};
}

Command worker_bisect_command() {
  auto arguments = std::make_shared<BisectArguments>();
  return {"bisect", "finds the first step of a recorded run where something holds",
          "primerl-worker bisect runs/latest --until 'trainer.mismatch_kl > 0.1'",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] {
            if (const Status valid = arguments->validate(); !valid.ok())
              return fail(valid.error(), kExitBadCommandLine);
            return run_bisect(*arguments);
          }};
}

}  // namespace primerl
