#include <fmt/format.h>

#include <algorithm>

#include "graph/base/files.h"
#include "graph/base/suggest.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/route_simulation.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr int64_t kEnginesMax = 1024;
constexpr int64_t kBlocksMax = 1 << 24;
constexpr double kTokensPerSecondMax = 1e9;

struct RouteSimArguments {
  std::string sessions;
  std::vector<std::string> policies;
  SimulatedEngines engines;
  double group_every_s = 0.1;
  std::string write;
  bool json = false;
};

/// All built-in policies, or those named, in the order of the command line.
Result<std::vector<RoutePolicyContract>> chosen_policies(const std::vector<std::string>& names) {
  const auto all = route_policies();
  if (names.empty()) return all;
  std::vector<std::string> known;
  for (const auto& policy : all) known.push_back(policy.name);
  std::vector<RoutePolicyContract> chosen;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(all, name, &RoutePolicyContract::name);
    if (found == all.end()) {
      const std::string near = nearest_name(name, known);
      return error(Code::kNotFound, "no routing policy '{}'", name)
          .note(near.empty() ? "policies: " + join_names(known)
                             : fmt::format("did you mean '{}'?", near));
    }
    if (std::ranges::find(chosen, name, &RoutePolicyContract::name) != chosen.end())
      return error(Code::kInvalid, "policy '{}' is named twice", name);
    chosen.push_back(*found);
  }
  return chosen;
}

Result<SessionTrace> read_sessions(const RouteSimArguments& arguments) {
  const std::filesystem::path path(arguments.sessions);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    return read_rollouts(path / "rollouts.jsonl", arguments.group_every_s);
  return read_session_trace(path);
}

/// Writes a new file; input files and anything that is not a regular file are not overwritten.
Status write_sessions(const RouteSimArguments& arguments, const SessionTrace& trace) {
  const std::filesystem::path path(arguments.write);
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    if (!std::filesystem::is_regular_file(path, ignored))
      return error(Code::kInvalid, "'{}' is no file", arguments.write)
          .note("--write makes a file, or replaces one");
    if (std::filesystem::equivalent(path, arguments.sessions, ignored))
      return error(Code::kInvalid, "'{}' is the trace that is read", arguments.write)
          .note("the names of blocks would replace its token ids; give another name");
  }
  return replace_file(system_files(), arguments.write, session_trace_text(trace));
}

Json to_json(const RouteOutcome& outcome) {
  return Json::object()
      .set("policy", outcome.policy)
      .set("hit_rate", outcome.hit_rate)
      .set("balance", outcome.balance)
      .set("group_p50_s", outcome.group_p50_s)
      .set("group_p90_s", outcome.group_p90_s)
      .set("end_s", outcome.end_s);
}

std::string to_text(const RouteOutcome& outcome) {
  return fmt::format("{:<20} {:>5.1f} % {:>8.2f} {:>10.3f} {:>10.3f} {:>10.3f}\n", outcome.policy,
                     100 * outcome.hit_rate, outcome.balance, outcome.group_p50_s,
                     outcome.group_p90_s, outcome.end_s);
}

int run_route_sim(const RouteSimArguments& arguments) {
  const auto policies = chosen_policies(arguments.policies);
  if (!policies.ok()) return fail(policies.error(), kExitBadCommandLine);
  const auto trace = read_sessions(arguments);
  if (!trace.ok()) return fail(trace.error(), kExitBadConfiguration);
  if (!arguments.write.empty()) {
    const Status written = write_sessions(arguments, *trace);
    if (!written.ok()) return fail(written.error(), kExitFailed);
  }
  Json list = Json::array();
  std::string text = fmt::format(
      "{} turns of {} sessions in {} groups on {} engines\n{:<20} {:>7} {:>8} {:>10} "
      "{:>10} {:>10}\n",
      trace->turns.size(), trace->num_sessions, trace->num_groups, arguments.engines.num_engines,
      "policy", "hits", "balance", "group p50", "group p90", "end, s");
  for (const auto& policy : *policies) {
    const RouteOutcome outcome = simulate_routes(*trace, policy, arguments.engines);
    if (arguments.json)
      list.push_back(to_json(outcome));
    else
      text += to_text(outcome);
  }
  if (!arguments.json) {
    print_text(text);
    return kExitDone;
  }
  print_json(Json::object()
                 .set("schema", "primerl.route_sim/1")
                 .set("turns", static_cast<uint64_t>(trace->turns.size()))
                 .set("sessions", trace->num_sessions)
                 .set("groups", trace->num_groups)
                 .set("engines", arguments.engines.num_engines)
                 .set("policies", std::move(list)));
  return kExitDone;
}

}  // namespace

Command route_sim_command() {
  auto arguments = std::make_shared<RouteSimArguments>();
  return {"route-sim", "tries every routing policy on the prompts of a trace or a run",
          "primerl-graph run examples/reverse_text/graph.toml --max-steps 5 --out runs/prompts "
          "--set node.rollout.log_tokens=true\n"
          "primerl-graph route-sim runs/prompts --engines 8 --policy cache_aware",
          [arguments](Arguments& flags) {
            auto& engines = arguments->engines;
            flags.positional(arguments->sessions, "SESSIONS",
                             "a session trace, or the folder of a run with log_tokens");
            flags.integer(engines.num_engines, "--engines", "N", "simulated engines", 1,
                          kEnginesMax);
            flags.texts(arguments->policies, "--policy", "NAME",
                        "this policy only; may be given several times");
            flags.number(engines.prefill_tokens_per_s, "--prefill-tokens-per-s", "RATE",
                         "prompt tokens that an engine computes", 1, kTokensPerSecondMax);
            flags.number(engines.decode_tokens_per_s, "--decode-tokens-per-s", "RATE",
                         "tokens that an engine samples, all sequences together", 1,
                         kTokensPerSecondMax);
            flags.integer(engines.kv_blocks, "--kv-blocks", "N",
                          "blocks of 32 tokens in an engine's cache", 1, kBlocksMax);
            flags.number(arguments->group_every_s, "--group-every", "SECONDS",
                         "from group to group, of a run's rollouts: they have no times", 0, 1e6);
            flags.text(arguments->write, "--write", "FILE",
                       "writes the session trace, without token ids");
            flags.flag(arguments->json, "--json", "prints JSON");
          },
          [arguments] { return run_route_sim(*arguments); }};
}

}  // namespace primerl
