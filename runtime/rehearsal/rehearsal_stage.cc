#include "runtime/rehearsal/rehearsal_stage.h"

#include <algorithm>

#include "graph/frozen.h"
#include "kernels/scripted/scripted_engine.h"
#include "kernels/scripted/scripted_learner.h"
#include "kernels/scripted/scripted_tokenizer.h"
#include "kernels/weights/memory_channel.h"
#include "kernels/weights/options.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/tenant_options.h"
#include "runtime/outside/scripted_clients.h"
#include "runtime/outside/scripted_outside.h"
#include "runtime/outside/scripted_runs.h"

namespace primerl {
namespace {

constexpr int64_t kRehearsedRows = 4;  // of an evaluation

// Larger than any sequence of a rehearsal, because its completions are short.
constexpr int32_t kSequenceTokensMax = 1 << 30;

using Made = Result<std::shared_ptr<Resource>>;

/// The limits of the graph file and the costs of a small model.
ScriptedEngineOptions engine_options(const Plan& plan, const PlanResource& resource) {
  const ScriptedEngineOptions defaults;
  ScriptedEngineOptions options;
  if (resource.backend == "scripted")
    options = *static_cast<const ScriptedEngineOptions*>(resource.options.get());
  else
    static_cast<EngineOptions&>(options) =
        *static_cast<const EngineOptions*>(resource.options.get());
  const auto index = static_cast<int32_t>(&resource - plan.resources.data());
  static_cast<EngineOptions&>(options) = engine_for(options, tenants_of_engine(plan, index));
  options.vocab_size = kScriptedVocabSize;
  options.first_token = kScriptedFirstToken;
  options.eos_id = 1;
  options.step_cost = defaults.step_cost;
  options.prefill_token_cost = defaults.prefill_token_cost;
  options.decode_token_cost = defaults.decode_token_cost;
  options.apply_cost = defaults.apply_cost;
  options.adapter_load_cost = defaults.adapter_load_cost;
  if (options.max_sequence_tokens == 0) options.max_sequence_tokens = kSequenceTokensMax;
  return options;
}

ScriptedLearnerOptions learner_options(const PlanResource& resource, int32_t max_steps) {
  ScriptedLearnerOptions options;
  const void* written = resource.options.get();
  if (resource.backend == "scripted")
    static_cast<LearnerOptions&>(options) = *static_cast<const ScriptedLearnerOptions*>(written);
  else
    static_cast<LearnerOptions&>(options) = *static_cast<const LearnerOptions*>(written);
  options.vocab_size = kScriptedVocabSize;
  options.max_sequence_tokens = kSequenceTokensMax;
  options.max_steps = max_steps;
  options.writes_files = false;
  return options;
}

template <class T>
Made as_resource(Result<std::unique_ptr<T>> made) {
  if (!made.ok()) return std::move(made).error();
  return std::shared_ptr<Resource>(std::move(made).value());
}

Made make_scripted(const Plan& plan, int32_t index, int32_t max_steps,
                   const std::shared_ptr<ScriptedRequests>& requests) {
  const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
  if (resource.kind == Engine::kResourceKind)
    return as_resource(
        make_scripted_engine(engine_options(plan, resource), make_scripted_tokenizer()));
  if (resource.kind == Learner::kResourceKind)
    return as_resource(make_scripted_learner(learner_options(resource, max_steps)));
  if (resource.kind == Tokenizer::kResourceKind)
    return std::shared_ptr<Resource>(make_scripted_tokenizer());
  if (resource.kind == WeightChannel::kResourceKind) {
    const auto& options = *static_cast<const WeightChannelOptions*>(resource.options.get());
    return std::shared_ptr<Resource>(
        make_memory_channel(static_cast<size_t>(options.versions_max)));
  }
  if (resource.kind == Outside::kResourceKind && resource.backend == "http")
    return std::shared_ptr<Resource>(make_scripted_clients({}, nullptr, requests));
  if (resource.kind == Outside::kResourceKind)
    return std::shared_ptr<Resource>(
        make_scripted_runs(*static_cast<const OutsideSpec*>(resource.options.get()),
                           make_scripted_outside({}), requests, {}));
  return error(Code::kUnavailable, "a resource of kind '{}' has no scripted form", resource.kind);
}

}  // namespace

RehearsalStage make_rehearsal_stage(const Plan& plan, int64_t steps) {
  auto staged = std::make_shared<Plan>(plan);
  auto contracts = std::make_shared<std::deque<Contract>>();
  for (PlanNode& node : staged->nodes) {
    if (!node.contract->make_scripted) continue;
    Contract& contract = contracts->emplace_back(*node.contract);
    contract.make = contract.make_scripted;
    node.contract = &contract;
  }
  for (Tenant& tenant : staged->tenants) {
    // A rehearsal has no client.
    tenant.max_steps = tenant.is_client ? 0 : std::min(tenant.max_steps, steps);
    tenant.checkpoint_every = 0;
    // Scripted tasks are no rows, so epochs do not end. Evaluations are played with few rows.
    tenant.tasks_max = tenant.groups_max = 0;
    if (tenant.eval.is_on()) tenant.eval.interval = std::min(tenant.eval.interval, steps);
    tenant.eval.rows = std::min(tenant.eval.rows, kRehearsedRows);
  }
  // The schedule of the whole run, not of the few rehearsed steps.
  const auto make =
      [max_steps = schedule_steps(plan), requests = std::make_shared<ScriptedRequests>()](
          const Plan& of, int32_t index) { return make_scripted(of, index, max_steps, requests); };
  return {std::move(staged), make, std::move(contracts)};
}

}  // namespace primerl
