#include "kernels/scripted/options.h"
#include "kernels/train/objective.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/run.h"
#include "runtime/program/exit_code.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

const LearnerOptions& learner_options(const PlanResource& resource) {
  if (resource.backend == "scripted")
    return *static_cast<const ScriptedLearnerOptions*>(resource.options.get());
  return *static_cast<const LearnerOptions*>(resource.options.get());
}

/// Supervised training is a graph like any other, except for the loss of its learners.
Status check_supervised(const Plan& plan) {
  bool has_learner = false;
  for (const auto& resource : plan.resources) {
    if (resource.kind != "learner") continue;
    has_learner = true;
    const std::string& loss = learner_options(resource).loss.kind;
    for (const Tenant& tenant : plan.tenants) {
      const bool is_own = !tenant.loss.kind.empty();
      const ObjectiveSpec* const spec = find_objective(is_own ? tenant.loss.kind : loss);
      if (spec != nullptr && !spec->uses_logprobs()) continue;
      return error(Code::kInvalid, "{} '{}' minimises '{}'", is_own ? "tenant" : "learner",
                   is_own ? tenant.name : resource.name, is_own ? tenant.loss.kind : loss)
          .note(
              "sft needs loss = { kind = \"cross_entropy\" }, or \"gkd\" with a teacher; "
              "`primerl-graph run` accepts any graph");
    }
  }
  if (!has_learner) return error(Code::kInvalid, "the graph has no learner");
  return ok();
}

int run_sft(const RunArguments& arguments) {
  if (!arguments.graph.file.empty()) {
    GraphArguments unplayed = arguments.graph;  // run_graph() rehearses and checks files later
    unplayed.no_rehearsal = true;
    unplayed.overrides.for_run = false;
    const auto plan = load_or_complain(unplayed);
    if (plan == nullptr) return kExitBadConfiguration;
    if (const Status supervised = check_supervised(*plan); !supervised.ok())
      return fail(supervised.error(), kExitBadConfiguration);
  }
  return run_graph(arguments);
}

}  // namespace

Command sft_command() {
  auto arguments = std::make_shared<RunArguments>();
  return {"sft", "trains a model on given answers: a graph whose loss is cross-entropy",
          "primerl-graph sft examples/reverse_text/sft.toml --max-steps 5 --out runs/sft",
          [arguments](Arguments& flags) { declare_run(*arguments, flags); },
          [arguments] { return run_sft(*arguments); }};
}

}  // namespace primerl
