#include "runtime/cli/run_asker.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>
#include <utility>

#include "graph/base/shell_word.h"
#include "runtime/cli/run_facts.h"
#include "runtime/store/command_box.h"

namespace primerl {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(5);

Error not_running(const std::filesystem::path& folder, const Json& facts, std::string_view gone) {
  if (const std::string end = text_member(facts, "end"); end != "running")
    return error(Code::kInvalid, "the run in '{}' has ended ({}, at {}): {}", folder.string(), end,
                 text_member(facts, "ended"), gone);
  return error(Code::kUnavailable,
               "the run in '{}' is not running: its primerl-graph process ended", folder.string())
      .note("resume it: primerl-graph run --resume " + shell_word(folder.string()));
}

}  // namespace

Result<Json> ask_running(const std::filesystem::path& folder, Json content, Duration timeout,
                         std::string_view gone) {
  ASSIGN_OR_RETURN(const Json facts, read_run_facts(folder));
  const Json control = member(facts, "control");
  const auto pid = control.get_int("pid"), ticks = control.get_int("start_ticks");
  if (text_member(facts, "end") != "running") return not_running(folder, facts, gone);
  if (const std::string host = text_member(facts, "host"); host != host_name())
    return error(Code::kUnavailable, "the run is on '{}', this is '{}': ask there", host,
                 host_name());
  if (!pid.ok() || !ticks.ok() || !is_alive(control)) return not_running(folder, facts, gone);
  auto answer = ask_run(
      folder, {*pid, *ticks}, std::move(content), timeout, [&control] { return is_alive(control); },
      [] { std::this_thread::sleep_for(kLookEvery); });
  if (!answer.ok())
    return Error(answer.error())
        .while_doing(fmt::format("asking the run in '{}'", folder.string()));
  return answer;
}

}  // namespace primerl
