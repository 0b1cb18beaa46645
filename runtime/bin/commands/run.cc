#include "runtime/bin/commands/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include "kernels/weights/channel.h"
#include "runtime/bin/commands/commands.h"
#include "runtime/bin/commands/output.h"
#include "runtime/bin/exit_code.h"
#include "runtime/bin/run_session.h"
#include "runtime/bin/summary.h"

namespace primerl {
namespace {

/// The checkpoints of a resumed run, its graph and its folder; every fault is said here.
struct Prepared {
  int exit_code = kExitDone;  // not done: what to leave with
  std::shared_ptr<const Plan> plan;
  ResumeChoice resume;
  std::unique_ptr<RunFolder> folder;
};

Prepared refuse(const Error& why, int exit_code) {
  Prepared prepared;
  prepared.exit_code = fail(why, exit_code);
  return prepared;
}

Prepared prepare(RunArguments arguments) {
  Prepared prepared;
  auto resume = read_resume(arguments.resume);
  if (!resume.ok()) return refuse(resume.error(), kExitBadConfiguration);
  prepared.resume = std::move(resume).value();
  if (arguments.graph.file.empty()) arguments.graph.file = prepared.resume.graph_file.string();
  if (arguments.graph.file.empty())
    return refuse(error(Code::kInvalid, "a GRAPH to run is needed"), kExitBadCommandLine);
  prepared.plan = load_or_complain(arguments.graph);
  if (prepared.plan == nullptr) {
    prepared.exit_code = kExitBadConfiguration;
    return prepared;
  }
  for (const auto& process : prepared.plan->processes)
    if (!process.machine.empty())
      return refuse(error(Code::kInvalid,
                          "process '{}' is placed on '{}'; this release starts processes on this "
                          "machine alone",
                          process.name, process.machine)
                        .note("leave out 'host' of its [place]"),
                    kExitBadConfiguration);
  // A record of several processes is read, not followed: such a run goes on from its checkpoint.
  if (prepared.plan->processes.size() == 1)
    choose_record(arguments, *prepared.plan, prepared.resume);
  const Status chosen = choose_checkpoints(arguments.resume, *prepared.plan, prepared.resume);
  for (const auto& note : prepared.resume.notes) fmt::print(stderr, "note: {}\n", note);
  if (!chosen.ok()) return refuse(chosen.error(), kExitBadConfiguration);
  auto folder = make_run_folder(arguments, prepared.resume, *prepared.plan);
  if (!folder.ok()) return refuse(folder.error(), kExitFailed);
  prepared.folder = std::move(folder).value();
  return prepared;
}

/// Removes what crashed runs left in shared memory and says so, but for this very run's.
void say_leftovers(StatusLine& status, const std::filesystem::path& own) {
  for (const auto& removed : remove_shm_leftovers())
    if (own.empty() || removed.run_folder != own.string()) status.say("note: " + removed.text());
}

}  // namespace

int run_graph(const RunArguments& run_arguments) {
  RunArguments arguments = run_arguments;
  Prepared prepared = prepare(arguments);
  if (prepared.exit_code != kExitDone) return prepared.exit_code;
  const Plan& plan = *prepared.plan;
  RunFolder& folder = *prepared.folder;
  StatusLine status(STDERR_FILENO, terminal_of(STDERR_FILENO));
  say_leftovers(status, {});
  status.say(fmt::format("run folder {}", folder.path().string()));
  for (const auto& point : prepared.resume.points)
    status.say(fmt::format("{} after step {} from {}",
                           prepared.resume.record.empty() ? "resuming" : "the learner resumes",
                           point.step, point.folder.string()));

  if (!arguments.graph.file.empty()) {
    std::error_code ignored;
    const auto graph = std::filesystem::absolute(arguments.graph.file, ignored).lexically_normal();
    if (const Status noted = folder.note(Json::object().set("graph", graph.string())); !noted.ok())
      return fail(noted.error(), kExitFailed);
  }
  RunSession session(plan, folder, prepared.resume, status);
  RunResult result = session.run();
  status.clear();
  if (result.has_left_record) {
    fmt::print(stderr, "warning: {}\nwarning: going on from the checkpoint alone\n", result.why);
    prepared.folder.reset();  // another start takes its lock
    arguments.from_checkpoint = true;
    return run_graph(arguments);
  }
  if (!result.why.empty() && !result.was_said) fmt::print(stderr, "error: {}\n", result.why);
  say_leftovers(status, folder.path());  // of workers that were killed
  const Status noted = folder.note(Json::object()
                                       .set("end", result.end)
                                       .set("exit_code", result.exit_code)
                                       .set("why", result.why)
                                       .set("ended", iso_time(wall_seconds())));
  if (!noted.ok() && result.why.empty()) {
    fail(noted.error(), kExitFailed);
    result.exit_code = kExitFailed;
  }
  if (arguments.json)
    print_json(summary_json(plan, folder, session.metrics(), result));
  else
    print_text(summary_text(plan, folder, session.metrics(), result, terminal_of(STDOUT_FILENO)));
  return result.exit_code;
}

void declare_run(RunArguments& arguments, Arguments& flags) {
  arguments.graph.declare(flags, false);
  flags.text(arguments.out, "--out", "DIR", "the run folder; default runs/<time>-<name>");
  flags.text(arguments.resume, "--resume", "DIR",
             "goes on with a run folder, or with a new run from checkpoints/step_N");
  flags.flag(arguments.from_checkpoint, "--from-checkpoint",
             "resumes after the newest checkpoint, without what was recorded after it");
  flags.flag(arguments.json, "--json", "prints the summary as JSON");
}

Command run_command() {
  auto arguments = std::make_shared<RunArguments>();
  return {"run", "trains: runs a graph until its tenants have taken their steps",
          "primerl-graph run examples/reverse_text/graph.toml --max-steps 50",
          [arguments](Arguments& flags) { declare_run(*arguments, flags); },
          [arguments] { return run_graph(*arguments); }};
}

}  // namespace primerl
