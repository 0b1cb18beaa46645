#include <fmt/format.h>

#include "graph/base/counted.h"
#include "runtime/cli/trace_actions.h"
#include "runtime/cli/trace_options.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"
#include "runtime/query/maintenance.h"
#include "runtime/query/step_text.h"
#include "runtime/store/run_damage.h"

namespace primerl {
namespace {

int run_verify(const TraceArguments& arguments) {
  auto report = verify_trace(arguments.run);
  if (!report.ok()) return fail(report.error(), kExitFailed);
  for (const DamagedFile& damaged : find_damage(arguments.run, report->graph_text))
    report->faults.push_back(
        {.kind = TraceFault::Kind::kDamage, .file = damaged.file.string(), .text = damaged.text});
  if (arguments.json) {
    Json faults = Json::array();
    for (const auto& fault : report->faults)
      faults.push_back(Json::object()
                           .set("kind", to_string(fault.kind))
                           .set("text", fault.text)
                           .set("file", fault.file)
                           .set("offset", fault.offset)
                           .set("is_fault", fault.is_fault()));
    print_json(Json::object()
                   .set("schema", "primerl.trace.verify/1")
                   .set("sound", report->is_sound())
                   .set("closed", report->is_closed)
                   .set("num_starts", report->num_starts)
                   .set("num_segments", report->num_segments)
                   .set("num_bytes", report->num_bytes)
                   .set("num_frames", report->num_frames)
                   .set("num_steps", report->num_deliveries)
                   .set("num_blobs", report->num_blobs)
                   .set("num_indices", report->num_indices)
                   .set("num_cuts", report->num_cuts)
                   .set("faults", std::move(faults)));
  } else {
    for (const auto& fault : report->faults)
      print_text(fmt::format("{}{}\n", fault.is_fault() ? "" : "(no fault) ", fault.text));
    print_text(
        fmt::format("{}: {}{}, {}, {}, {}, {}, {}\n", report->is_sound() ? "sound" : "NOT SOUND",
                    starts_text(report->num_starts), counted(report->num_segments, "segment"),
                    rounded_bytes(report->num_bytes), counted(report->num_frames, "frame"),
                    counted(report->num_deliveries, "step"), counted(report->num_blobs, "blob"),
                    counted(report->num_cuts, "cut")));
  }
  return report->is_sound() ? kExitDone : kExitFailed;
}

/// Reports the result of recover or pack, file by file; a file that could not be changed is a
/// failure.
int report_steps(const Result<std::vector<MaintenanceStep>>& steps, std::string_view schema,
                 bool json) {
  if (!steps.ok()) return fail(steps.error(), kExitFailed);
  bool is_done = true;
  Json files = Json::array();
  for (const auto& step : *steps) {
    is_done &= step.is_done;
    files.push_back(Json::object()
                        .set("file", step.file)
                        .set("text", step.text)
                        .set("done", step.is_done)
                        .set("bytes_before", step.bytes_before)
                        .set("bytes_after", step.bytes_after));
    if (!json)
      print_text(fmt::format("{}: {}{}\n", step.file, step.is_done ? "" : "NOT DONE: ", step.text));
  }
  if (json)
    print_json(Json::object().set("schema", schema).set("files", std::move(files)));
  else if (steps->empty())
    print_text("nothing to do\n");
  return is_done ? kExitDone : kExitFailed;
}

}  // namespace

Command verify_action() {
  auto arguments = std::make_shared<TraceArguments>();
  return {"verify", "reads a whole trace and checks everything that can be checked",
          "primerl-graph trace verify runs/latest",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] { return run_verify(*arguments); }};
}

Command recover_action() {
  struct RecoverArguments {
    TraceArguments trace;
    RecoverOptions options;
  };
  auto arguments = std::make_shared<RecoverArguments>();
  return {"recover", "cuts off what the death of a process left unfinished",
          "primerl-graph trace recover runs/latest",
          [arguments](Arguments& flags) {
            arguments->trace.declare(flags);
            flags.flag(arguments->options.cuts_holes, "--cut-holes",
                       "also writes segments anew without the holes in them");
          },
          [arguments] {
            return report_steps(recover_trace(arguments->trace.run, arguments->options),
                                "primerl.trace.recover/1", arguments->trace.json);
          }};
}

Command pack_action() {
  auto arguments = std::make_shared<TraceArguments>();
  return {"pack", "compresses the segments that were not compressed yet",
          "primerl-graph trace pack runs/latest",
          [arguments](Arguments& flags) { arguments->declare(flags); },
          [arguments] {
            return report_steps(pack_trace(arguments->run), "primerl.trace.pack/1",
                                arguments->json);
          }};
}

}  // namespace primerl
