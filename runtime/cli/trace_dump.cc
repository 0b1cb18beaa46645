#include <fmt/format.h>

#include "graph/base/counted.h"
#include "graph/base/files.h"
#include "runtime/cli/trace_actions.h"
#include "runtime/cli/trace_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/query/step_text.h"
#include "runtime/trace/record/ring_requests.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

struct DumpArguments {
  TraceArguments trace;
  int64_t wait_seconds = 30;
};

/// The folder that the processes of a run write to, from its run.json. An error when its trace can
/// be read without a dump, or when nothing is recorded.
Result<fs::path> ring_folder(const fs::path& run) {
  const fs::path file = run / "run.json";
  std::error_code none;
  if (!fs::exists(file, none))
    return error(Code::kNotFound, "'{}' is no run folder: it has no run.json", run.string())
        .note("give the folder of a live run, as in runs/latest");
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const Json facts, parse_json(text, file.string()));
  const Json* trace = facts.find("trace");
  if (trace == nullptr || !trace->is_object())
    return error(Code::kInvalid, "the run '{}' records nothing (trace.level = \"off\")",
                 run.string())
        .note("run with --set trace.level=ring");
  ASSIGN_OR_RETURN(const std::string level, trace->get_string("level"));
  if (level != "ring")
    return error(Code::kInvalid, "the run '{}' is no flight recorder: trace.level = \"{}\"",
                 run.string(), level)
        .note(
            "its trace is on the disk at any time: read it as it is, with `trace stat` and others");
  ASSIGN_OR_RETURN(const std::string folder, trace->get_string("folder"));
  return run / folder;
}

/// Why no process can be asked, as far as run.json shows.
Error nobody_lives(const fs::path& run, const Error& why) {
  const auto text = read_text_file(run / "run.json");
  const auto facts = text.ok() ? parse_json(*text, "run.json") : Result<Json>(text.error());
  const Json* end = facts.ok() ? facts->find("end") : nullptr;
  if (end != nullptr && end->is_string() && end->as_string() != "running")
    return error(Code::kNotFound, "the run '{}' has ended ({}): what was only in memory is gone",
                 run.string(), end->as_string());
  return error(Code::kNotFound, "{}: the run '{}' has not begun to record, or was killed",
               why.message(), run.string());
}

Json to_json(const Trace& trace, const std::vector<DumpedProcess>& dumped) {
  Json processes = Json::array();
  for (const auto& each : dumped)
    processes.push_back(Json::object()
                            .set("process", each.process)
                            .set("incarnation", each.incarnation)
                            .set("pid", static_cast<int64_t>(each.pid))
                            .set("first_segment", each.snapshot.first_segment)
                            .set("last_segment", each.snapshot.last_segment)
                            .set("bytes", each.snapshot.num_bytes));
  Json groups = Json::array();
  for (uint32_t i = 0; i < trace.catalog().groups.size(); ++i)
    groups.push_back(Json::object()
                         .set("group", trace.catalog().groups[i].name)
                         .set("first_step", trace.first_step(GroupId(i)))
                         .set("last_step", trace.last_step(GroupId(i))));
  return Json::object()
      .set("schema", "primerl.trace.dump/1")
      .set("folder", trace.folder().string())
      .set("steps", trace.num_steps())
      .set("processes", std::move(processes))
      .set("groups", std::move(groups));
}

std::string to_text(const Trace& trace, const std::vector<DumpedProcess>& dumped) {
  std::string text;
  for (const auto& each : dumped)
    text += fmt::format(
        "process '{}': {}, {}\n", each.process,
        counted(each.snapshot.last_segment - each.snapshot.first_segment + 1, "segment"),
        rounded_bytes(each.snapshot.num_bytes));
  for (uint32_t i = 0; i < trace.catalog().groups.size(); ++i)
    if (const GroupId group(i); trace.last_step(group) > 0)
      text += fmt::format("  {}: steps {} to {}\n", trace.catalog().groups[i].name,
                          trace.first_step(group), trace.last_step(group));
  return text + fmt::format("{} in {}; the run continues\n", counted(trace.num_steps(), "step"),
                            trace.folder().string());
}

int run_dump(const DumpArguments& arguments) {
  const fs::path run = arguments.trace.run;
  const auto folder = ring_folder(run);
  if (!folder.ok()) return fail(folder.error(), kExitBadConfiguration);
  const auto dumped = request_dump(*folder, Duration::seconds(arguments.wait_seconds));
  if (!dumped.ok() && dumped.error().code() == Code::kNotFound)
    return fail(nobody_lives(run, dumped.error()), kExitFailed);
  if (!dumped.ok()) return fail(dumped.error(), kExitFailed);
  const auto opened = open_for_command(folder->string());
  if (opened.trace == nullptr) return opened.exit_code;
  if (arguments.trace.json)
    print_json(to_json(*opened.trace, *dumped));
  else
    print_text(to_text(*opened.trace, *dumped));
  return kExitDone;
}

}  // namespace

Command dump_action() {
  auto arguments = std::make_shared<DumpArguments>();
  return {"dump", "writes out what a live run has recorded in memory (trace.level = \"ring\")",
          "primerl-graph trace dump runs/latest",
          [arguments](Arguments& flags) {
            arguments->trace.declare(flags);
            flags.integer(arguments->wait_seconds, "--wait", "SECONDS",
                          "how long each process has to answer", 1, 3600);
          },
          [arguments] { return run_dump(*arguments); }};
}

}  // namespace primerl
