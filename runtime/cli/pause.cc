#include <filesystem>

#include "actors/common/engine_holds.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/run_asker.h"
#include "runtime/cli/run_facts.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr Duration kPauseAnswerMax =
    Duration::seconds(30);  // longer than PauseController::kAnswerMax

struct PauseArguments {
  std::string run = "runs/latest";
  std::string owner = "operator";
  std::string lease = "10m";
  std::string tenant;
  bool json = false;
};

Result<Json> ask_for_hold(const std::filesystem::path& folder, const PauseArguments& arguments,
                          Duration lease) {
  Json content = Json::object();
  content.set("owner", arguments.owner).set("lease_ns", lease.to_nanoseconds());
  if (!arguments.tenant.empty()) content.set("tenant", arguments.tenant);
  return ask_running(folder, std::move(content), kPauseAnswerMax, "its engines are gone");
}

std::vector<std::string> names_in(const Json& answer, std::string_view key) {
  std::vector<std::string> names;
  const Json list = member(answer, key);
  if (!list.is_array()) return names;
  for (const Json& name : list.as_array())
    if (name.is_string()) names.push_back(name.as_string());
  return names;
}

/// Shows the engines' answers. If some refused, the exit code is 1; the others apply the request.
int show_answer(const Json& answer, const PauseArguments& arguments, Duration lease) {
  const bool lets_go = lease == Duration();
  const auto obeyed = names_in(answer, "obeyed"), late = names_in(answer, "late"),
             unheld = names_in(answer, "unheld"), holders = names_in(answer, "holders");
  if (arguments.json) {
    print_json(answer);
  } else {
    if (!obeyed.empty())
      print_text(
          lets_go ? fmt::format("unpaused by '{}': {}\n", arguments.owner, fmt::join(obeyed, ", "))
                  : fmt::format("paused for {} by '{}': {}\n", to_string(lease), arguments.owner,
                                fmt::join(obeyed, ", ")));
    if (!unheld.empty())
      print_text(
          fmt::format("'{}' has paused nothing: {}\n", arguments.owner, fmt::join(unheld, ", ")));
    if (!unheld.empty() && obeyed.empty() && !holders.empty())
      print_text(fmt::format("still paused by '{}': unpause with --owner NAME\n",
                             fmt::join(holders, "', '")));
    if (!late.empty())
      print_text(fmt::format("not answered yet, applies it at the end of its step: {}\n",
                             fmt::join(late, ", ")));
  }
  const Json refused = member(answer, "refused");
  if (!refused.is_array() || refused.as_array().empty()) return kExitDone;
  for (const Json& one : refused.as_array())
    complain("error: '{}' refused: {}\n", text_member(one, "engine"), text_member(one, "why"));
  return kExitFailed;
}

int run_pause(const PauseArguments& arguments, bool lets_go) {
  Duration lease;
  if (!lets_go) {
    const auto parsed = parse_duration(arguments.lease);
    if (!parsed.ok())
      return fail(Error(parsed.error()).while_doing("reading --lease"), kExitBadCommandLine);
    lease = *parsed;
  }
  // EngineHolds would refuse these values at every engine, so they are checked before any engine is
  // asked.
  const Status fits =
      EngineHolds().hold(arguments.owner, lets_go ? EngineHolds::kLeaseMax : lease, Time());
  if (!fits.ok()) return fail(fits.error(), kExitBadCommandLine);
  const auto answer = ask_for_hold(run_path(arguments.run), arguments, lease);
  if (!answer.ok()) return fail(answer.error(), exit_code_of(answer.error()));
  if (const std::string why = text_member(*answer, "error"); !why.empty())
    return fail(error(Code::kUnavailable, "{}", why),
                answer->find("is_bad") != nullptr ? kExitBadCommandLine : kExitFailed);
  return show_answer(*answer, arguments, lease);
}

void declare_common(Arguments& flags, PauseArguments& arguments) {
  flags.positional(arguments.run, "RUN", "a run folder; default runs/latest", false);
  flags.text(arguments.owner, "--owner", "NAME", "the owner of the pause; default operator");
  flags.text(arguments.tenant, "--tenant", "NAME", "only engines that no other tenant uses");
  flags.flag(arguments.json, "--json", "prints JSON");
}

}  // namespace

Command pause_command() {
  auto arguments = std::make_shared<PauseArguments>();
  return {"pause", "pauses the engines of a run, until unpause or the end of a lease",
          "primerl-graph pause runs/latest --lease 10m",
          [arguments](Arguments& flags) {
            declare_common(flags, *arguments);
            flags.text(arguments->lease, "--lease", "DURATION",
                       "after this time the engines resume; default 10m, at most 1h");
          },
          [arguments] { return run_pause(*arguments, false); }};
}

Command unpause_command() {
  auto arguments = std::make_shared<PauseArguments>();
  return {"unpause", "resumes engines that pause has stopped", "primerl-graph unpause runs/latest",
          [arguments](Arguments& flags) { declare_common(flags, *arguments); },
          [arguments] { return run_pause(*arguments, true); }};
}

}  // namespace primerl
