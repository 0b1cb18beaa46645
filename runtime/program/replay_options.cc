#include "runtime/program/replay_options.h"

#include <fmt/format.h>

namespace primerl {

void ReplayArguments::declare(Arguments& arguments) {
  arguments.positional(run, "RUN", "a run folder with a trace");
  arguments.choice(depth, "--depth", {"full", "learner", "control"},
                   "what is computed: all; all but completions; nothing but control");
  arguments.text(node, "--node", "NAME", "replays this node's actor group alone");
  arguments.text(tenant, "--tenant", "NAME",
                 "replays only this tenant's actors and training steps");
  arguments.texts(sets, "--set", "K=V", "an option to change: shows what would have changed first");
  arguments.integer(threads, "--threads", "N", "threads for groups without compute resources", 1,
                    256);
  arguments.text(from, "--from", "STEP",
                 "begins with what was saved before this training step, or NODE:STEP");
  arguments.integer(stop_at, "--stop-at", "STEP", "stops --node before this step of its group", 0,
                    INT64_MAX);
  arguments.flag(is_stepped, "--step", "steps by hand: next, back, show");
  arguments.text(out, "--out", "DIR", "keeps rollouts.jsonl and metrics.jsonl of the replay");
  arguments.text(fixture, "--fixture", "DIR",
                 "writes the smallest test that shows the first divergence, or else --node");
  arguments.flag(json, "--json", "prints the report as JSON");
}

Status ReplayArguments::validate() const {
  if (stop_at > 0 && node.empty() && !is_stepped)
    return error(Code::kInvalid, "--stop-at needs --node: steps are counted per actor group");
  if (!from.empty() && depth != "control")
    return error(Code::kInvalid,
                 "--from needs --depth control: the saved state has no weights and no caches");
  if (!tenant.empty() && !node.empty())
    return error(Code::kInvalid, "--tenant or --node: one says what is replayed");
  if (!tenant.empty() && !fixture.empty())
    return error(Code::kInvalid, "a fixture is of a node: leave --tenant out");
  if (!from.empty() && !fixture.empty())
    return error(Code::kInvalid, "a fixture begins with the first step: leave --from out");
  if (is_stepped && !fixture.empty())
    return error(Code::kInvalid, "--step plays by hand: there is no --fixture of that");
  if (is_stepped && threads != 1)
    return error(Code::kInvalid, "--step plays on one thread, not {}", threads);
  return ok();
}

std::vector<std::string> ReplayArguments::words() const {
  std::vector<std::string> words = {"replay", run,         "--depth",
                                    depth,    "--threads", fmt::format("{}", threads)};
  const auto add = [&](const char* flag, const std::string& value) {
    if (value.empty()) return;
    words.emplace_back(flag);
    words.push_back(value);
  };
  add("--node", node);
  add("--tenant", tenant);
  add("--from", from);
  for (const auto& set : sets) add("--set", set);
  if (stop_at > 0) add("--stop-at", fmt::format("{}", stop_at));
  add("--out", out);
  add("--fixture", fixture);
  if (is_stepped) words.emplace_back("--step");
  if (json) words.emplace_back("--json");
  return words;
}

void BisectArguments::declare(Arguments& arguments) {
  arguments.positional(run, "RUN", "a run folder with a trace");
  arguments.text(until, "--until", "PREDICATE",
                 "NODE.METRIC OP NUMBER or NODE.OUTPUT.FIELD OP NUMBER, OP one of > >= < <= == !=");
  arguments.flag(json, "--json", "prints the result as JSON");
}

Status BisectArguments::validate() const {
  if (until.empty())
    return error(Code::kInvalid,
                 "what to look for is missing: --until 'trainer.mismatch_kl > 0.1'");
  return ok();
}

std::vector<std::string> BisectArguments::words() const {
  std::vector<std::string> words = {"bisect", run, "--until", until};
  if (json) words.emplace_back("--json");
  return words;
}

}  // namespace primerl
