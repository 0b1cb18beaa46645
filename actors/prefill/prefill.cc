#include "actors/prefill/prefill.h"

#include <algorithm>

#include "actors/common/apply_policy.h"

namespace primerl {
namespace {

constexpr int64_t kDonePerTurn = 64;

SequenceRequest sequence_for(const GenerateRequest& request, RequestName name) {
  SequenceRequest sequence;
  sequence.id = sequence_of(name);
  sequence.tenant = name.tenant;
  sequence.prompt_tokens = request.prompt_tokens;
  sequence.sampling.temperature = request.temperature;
  sequence.sampling.top_k = request.top_k;
  sequence.sampling.top_p = request.top_p;
  sequence.sampling.min_p = request.min_p;
  sequence.sampling.max_tokens = request.max_tokens;
  sequence.seed = request.seed;
  sequence.salt = request.salt;
  return sequence;
}

}  // namespace

Contract Prefill::contract() {
  return ContractOf<Prefill, PrefillOptions>("prefill", "computes the KV of prompts")
      .uses<Engine>("engine", &PrefillOptions::engine, "the engine it feeds")
      .uses<WeightChannel>("weights", &PrefillOptions::weights, "where new weights come from")
      .in("request", &Prefill::on_request, "a prompt to continue",
          refuse_with(&Prefill::refuse_request))
      .in("abort", &Prefill::on_abort, "a request that nobody wants any more", optional_port())
      .in("update", &Prefill::on_update, "a new policy version", optional_port(), latest_wins())
      // No handler sends it, so aborts and updates do not add to its edge's bound.
      .out("done", &Prefill::done_, "a prompt whose KV is complete", recorded(), burst(0),
           work_burst(kDonePerTurn))
      .out("refused", &Prefill::refused_, "the answer to a request that the engine did not take",
           recorded())
      .out("applied", &Prefill::applied_out_, "the weights are in place", optional_port(),
           recorded())
      .out("load", &Prefill::load_, "how busy the engine is", optional_port(), recorded(),
           work_burst(1))
      .timer("weights", &Prefill::take_weights, "new weights were still on their way")
      .works();
}

Status Prefill::start(Resources& resources) {
  engine_ = &resources.get<Engine>("engine");
  weights_ = &resources.get<WeightChannel>("weights");
  RETURN_IF_ERROR(weights_->expect(engine_->manifest()));
  if (!services().tenants().empty()) load_tenant_ = services().tenants().front();
  return ok();
}

Status Prefill::on_request(const GenerateRequest& request) {
  ++num_received_;
  const RequestName name{services().delivery().tenant, request.request};
  if (cancelled_.contains(name)) {
    answer(request, CompletionEnd::kCancelled, "cancelled before it reached the engine");
    return ok();
  }
  if (!is_nameable(name))
    return error(Code::kInvalid, "request {} is not below 2^{}", request.request, kRequestBits);
  RETURN_IF_ERROR(engine_->submit(sequence_for(request, name)));
  const auto& delivery = services().delivery();
  submitted_[name] = {request.session, request.attempt,
                      static_cast<int32_t>(request.prompt_tokens.size()), delivery.ref,
                      delivery.origin};
  return ok();
}

void Prefill::refuse_request(const GenerateRequest& request, const Error& error) {
  services().count("requests_refused", 1);
  answer(request, CompletionEnd::kRefused, error.text());
}

void Prefill::answer(const GenerateRequest& request, CompletionEnd end, std::string detail) {
  Completion completion;
  completion.request = request.request;
  completion.session = request.session;
  completion.attempt = request.attempt;
  completion.end = end;
  completion.detail = std::move(detail);
  refused_.send(std::move(completion));
}

Status Prefill::on_abort(const Abort& abort) {
  const RequestName name{services().delivery().tenant, abort.request};
  if (!is_nameable(name)) return ok();
  cancelled_.add(name);
  submitted_.erase(name);
  engine_->abort(sequence_of(name));
  return ok();
}

Status Prefill::on_update(const PolicyUpdate& update) {
  const auto& delivery = services().delivery();
  coming_ = ComingPolicy{update.version, delivery.tenant, delivery.ref};
  return take_weights();
}

Status Prefill::take_weights() {
  if (!coming_) return ok();
  auto applied = apply_policy(coming_->version, services().self(), *engine_, *weights_);
  if (!applied) {
    services().set_timer("weights", kWeightsRetry);
    return ok();
  }
  if (applied->fault.empty()) applied_ = std::max(applied_, applied->version);
  // The router learns it first: a group opened under this version finds an engine at once.
  tell_load();
  applied_out_.send(std::move(*applied), for_tenant(coming_->tenant).answering(coming_->cause));
  coming_.reset();
  return ok();
}

/// Weights that have not come by now are nobody's.
Status Prefill::drain() {
  coming_.reset();
  return ok();
}

Result<bool> Prefill::work() {
  for (auto& event : engine_->take_prefilled()) prefilled_.push_back(event);
  for (int64_t i = 0; i < kDonePerTurn && !prefilled_.empty(); ++i) {
    const PrefillEvent event = prefilled_.front();
    prefilled_.pop_front();
    const RequestName name = request_of(event.id);
    const auto found = submitted_.find(name);
    if (found == submitted_.end()) continue;  // aborted meanwhile
    const Submitted submitted = found->second;
    submitted_.erase(found);
    PrefillDone done;
    done.request = name.request;
    done.session = submitted.session;
    done.attempt = submitted.attempt;
    done.kv.owner = services().self();
    done.kv.id = event.id.value;
    done.num_prompt_tokens = submitted.num_prompt_tokens;
    done.num_cached_tokens = event.num_cached_tokens;
    done_.send(std::move(done),
               for_tenant(name.tenant).answering(submitted.cause).to_origin_of(submitted.origin));
  }
  // A sequence may end in the engine before its prompt is complete; Decode answers it.
  if (prefilled_.empty() && engine_->state().num_waiting == 0) submitted_.clear();
  tell_load();
  return engine_->has_work() || !prefilled_.empty();
}

EngineLoad Prefill::load() const {
  const EngineState state = engine_->state();
  EngineLoad load;
  load.engine = services().self();
  const auto num_alive =
      static_cast<uint64_t>(state.num_waiting + state.num_held + state.num_running);
  load.num_finished = num_received_ - std::min(num_received_, num_alive);
  load.num_waiting = state.num_waiting;
  load.num_running = state.num_running;
  load.num_free_blocks = state.num_free_blocks;
  load.num_blocks = state.num_blocks;
  load.applied = applied_;
  return load;
}

void Prefill::tell_load() {
  EngineLoad now = load();
  const bool is_news = !told_load_ || told_load_->num_finished != now.num_finished ||
                       told_load_->applied != now.applied ||
                       told_load_->num_waiting != now.num_waiting;
  if (!is_news || load_tenant_.is_none()) return;
  told_load_ = now;
  load_.send(std::move(now), for_tenant(load_tenant_));
}

bool Prefill::idle() const { return submitted_.empty() && prefilled_.empty(); }

}  // namespace primerl
