#include "actors/prefill/prefill.h"

#include <algorithm>

#include "actors/common/completion.h"

namespace primerl {
namespace {

constexpr int64_t kDonePerWorkCall = 64;
/// Fewest sessions remembered, whatever the tenants' inflight_max.
constexpr int64_t kSessionsAtLeast = 64;

SequenceRequest sequence_for(const GenerateRequest& request, const std::vector<int32_t>& prompt,
                             RequestName name, AdapterId adapter) {
  SequenceRequest sequence;
  sequence.id = sequence_of(name);
  sequence.tenant = name.tenant;
  sequence.adapter = adapter;
  sequence.prompt_tokens = prompt;
  sequence.sampling = request.sampling;
  sequence.seed = request.seed;
  sequence.salt = request.salt;
  return sequence;
}

}  // namespace

Contract Prefill::contract() {
  using O = PrefillOptions;
  return ContractOf<Prefill, O>("prefill", "computes the KV of prompts")
      .uses<Engine>("engine", &O::engine, "the engine that computes the prompts")
      .uses<WeightChannel>("weights", &O::weights,
                           "where new weights come from; \"none\": the engine keeps those of its "
                           "model folder")
      .option("lease", &O::lease, above(0),
              "how long a finished prompt's KV waits for decode before it is freed")
      .option("session_tokens_max", &O::session_tokens_max,
              between(1, kSessionTokensLimit) | unit("tokens"),
              "prompts of sessions that are remembered, so that a later turn sends only its new "
              "tokens; the least recently used session is dropped, and its next turn is sent whole")
      .in("request", &Prefill::on_request, "a prompt to continue",
          refuse_with(&Prefill::refuse_request))
      .in("abort", &Prefill::on_abort, "a cancelled request", optional_port())
      .in("update", &Prefill::on_update, "a new policy version", optional_port(), latest_wins())
      // No handler sends `done`, so aborts and updates do not add to its edge's bound.
      .out("done", &Prefill::done_, "a prompt whose KV is complete", recorded(), burst(0),
           work_burst(kDonePerWorkCall), handles_of("engine"))
      .out("refused", &Prefill::refused_, "the answer to a request that the engine did not accept",
           recorded(), to_origin(), work_burst(1))
      .out("applied", &Prefill::applied_out_, "new weights are applied", optional_port(),
           recorded())
      .out("load", &Prefill::load_, "how busy the engine is", optional_port(), recorded(),
           work_burst(1))
      .timer("weights", &Prefill::take_weights, "weights that had not arrived are fetched again")
      .timer("lease", &Prefill::on_lease, "the lease of a finished prompt may have ended")
      .works()
      .state([](auto& f) {
        using P = Prefill;
        engine_fields(f);
        f("submitted", &P::submitted_)("done_waiting", &P::done_waiting_)("parked", &P::parked_)(
            "leases", &P::leases_)("is_lease_armed", &P::is_lease_armed_)(
            "cancelled", &P::cancelled_)("num_received", &P::num_received_)(
            "sessions", &P::sessions_)("dropping", &P::dropping_);
      });
}

Status Prefill::start(Resources& resources) {
  RETURN_IF_ERROR(EngineUser::start(resources));
  count_sessions();
  return ok();
}

/// At kLeave requests of the tenant are left only if it failed; their answers have no receiver.
Status Prefill::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  RETURN_IF_ERROR(EngineUser::on_tenant(slot, kind));
  count_sessions();
  if (kind != TenantChange::Kind::kLeave) return ok();
  for (const auto& [name, submitted] : submitted_)
    if (name.tenant == slot) engine_->abort(sequence_of(name));
  std::erase_if(submitted_, [slot](const auto& each) { return each.first.tenant == slot; });
  std::erase_if(done_waiting_,
                [slot](const Done& done) { return request_of(done.event.id).tenant == slot; });
  for (const Lease& lease : leases_)
    if (request_of(lease.id).tenant == slot) engine_->expire(lease.id);
  std::erase_if(leases_,
                [slot](const Lease& lease) { return request_of(lease.id).tenant == slot; });
  if (parked_ && parked_->name.tenant == slot) (void)unpark();
  sessions_.drop(slot);
  cancelled_.drop(slot);
  return ok();
}

void Prefill::count_sessions() {
  int64_t inflight = 0;
  for (const TenantSlot slot : services().tenants())
    inflight += services().tenant(slot).inflight_max;
  // Twice the rollouts in flight, so that a session that waits for its environment is kept even if
  // as many other sessions begin and end meanwhile.
  sessions_max_ = static_cast<size_t>(std::max(2 * inflight, kSessionsAtLeast));
}

Status Prefill::on_request(const GenerateRequest& request) {
  ++num_received_;
  const auto& delivery = services().delivery();
  const RequestName name{delivery.tenant, request.request};
  if (cancelled_.contains(name)) {
    answer(request, FinishReason::kCancelled, "cancelled before it reached the engine");
    return ok();
  }
  if (!is_nameable(name))
    return error(Code::kInvalid, "request {} is not below 2^{}", request.request, kRequestBits);
  const auto* prompt =
      sessions_.take({delivery.tenant, request.session, request.adapter}, request.known,
                     request.prompt_tokens, options_.session_tokens_max, sessions_max_);
  if (prompt == nullptr) {
    services().count("sessions_unknown", 1);
    answer(request, FinishReason::kUnknownSession,
           "this engine does not have the session's earlier turns");
    return ok();
  }
  const Status submitted = submit(request, *prompt, name, delivery.ref, delivery.origin);
  if (submitted.ok() || submitted.error().code() != Code::kExhausted) return submitted;
  // A full queue is not an answer: the request waits until the engine has free space.
  parked_ = Parked{request, name, delivery.ref, delivery.origin};
  parked_->request.known = {};
  parked_->request.prompt_tokens = *prompt;
  services().pause("request");
  services().count("requests_parked", 1);
  return ok();
}

Status Prefill::submit(const GenerateRequest& request, const std::vector<int32_t>& prompt,
                       RequestName name, StepRef cause, InstanceId origin) {
  ASSIGN_OR_RETURN(const WeightsKey key, key_for(name.tenant, request.adapter));
  RETURN_IF_ERROR(engine_->submit(sequence_for(request, prompt, name, key.adapter)));
  submitted_[name] = {request.session, request.attempt, static_cast<int32_t>(prompt.size()),
                      cause,           origin,          key.adapter};
  return ok();
}

void Prefill::submit_parked() {
  const Status submitted = submit(parked_->request, parked_->request.prompt_tokens, parked_->name,
                                  parked_->cause, parked_->origin);
  if (!submitted.ok() && submitted.error().code() == Code::kExhausted) return;
  const Parked parked = unpark();
  if (!submitted.ok()) answer_parked(parked, FinishReason::kRefused, submitted.error().text());
}

Prefill::Parked Prefill::unpark() {
  Parked parked = *std::move(parked_);
  parked_.reset();
  services().resume("request");
  return parked;
}

void Prefill::refuse_request(const GenerateRequest& request, const Error& error) {
  services().count("requests_refused", 1);
  answer(request, FinishReason::kRefused, error.text());
}

void Prefill::answer(const GenerateRequest& request, FinishReason end, std::string detail,
                     const SendOptions& options) {
  refused_.send(completion_of(request, end, std::move(detail)), options);
}

void Prefill::answer_parked(const Parked& parked, FinishReason end, std::string detail) {
  answer(parked.request, end, std::move(detail),
         for_tenant(parked.name.tenant).answering(parked.cause).to_origin_of(parked.origin));
}

Status Prefill::on_abort(const Abort& abort) {
  const RequestName name{services().delivery().tenant, abort.request};
  if (!is_nameable(name)) return ok();
  if (parked_ && parked_->name == name) {
    answer_parked(unpark(), FinishReason::kCancelled, "cancelled before the engine had free space");
    return ok();
  }
  cancelled_.add(name);
  submitted_.erase(name);
  engine_->abort(sequence_of(name));
  return ok();
}

Result<bool> Prefill::work() {
  for (const auto& event : engine_->take_prefilled()) {
    // If it is not there, another actor submitted the prompt to this engine.
    const auto found = submitted_.find(request_of(event.id));
    if (found == submitted_.end()) continue;
    done_waiting_.push_back({event, found->second});
    submitted_.erase(found);
  }
  for (int64_t i = 0; i < kDonePerWorkCall && !done_waiting_.empty(); ++i) {
    send_done(done_waiting_.front());
    done_waiting_.pop_front();
  }
  if (parked_) submit_parked();
  const EngineState state = engine_->state();
  // A sequence may end in the engine before its prompt is complete. Decode answers it.
  if (done_waiting_.empty() && state.num_waiting == 0) submitted_.clear();
  if (state.num_held == 0) leases_.clear();
  drop_idle_keys();
  send_load(state);
  return engine_->has_work() || !done_waiting_.empty();
}

/// After this, the actor that receives the handle must answer. An aborted sequence is forwarded
/// too.
void Prefill::send_done(const Done& done) {
  const RequestName name = request_of(done.event.id);
  const Submitted& submitted = done.submitted;
  PrefillDone message;
  message.request = name.request;
  message.session = submitted.session;
  message.attempt = submitted.attempt;
  message.kv.owner = services().self();
  message.kv.incarnation = services().incarnation();
  message.kv.id = done.event.id.value;
  message.kv.lease = options_.lease;
  message.num_prompt_tokens = submitted.num_prompt_tokens;
  message.num_cached_tokens = done.event.num_cached_tokens;
  done_.send(std::move(message),
             for_tenant(name.tenant).answering(submitted.cause).to_origin_of(submitted.origin));
  leases_.push_back({services().now() + options_.lease, done.event.id});
  if (is_lease_armed_) return;
  is_lease_armed_ = true;
  services().set_timer("lease", options_.lease);
}

Status Prefill::on_lease() {
  is_lease_armed_ = false;
  const Time now = services().now();
  for (; !leases_.empty() && leases_.front().ends <= now; leases_.pop_front())
    engine_->expire(leases_.front().id);
  if (leases_.empty()) return ok();
  // One timer serves several leases, so a lease may last an eighth longer.
  const Duration least = Duration::nanoseconds(options_.lease.to_nanoseconds() / 8);
  is_lease_armed_ = true;
  services().set_timer("lease", std::max(leases_.front().ends - now, least));
  return ok();
}

void Prefill::on_drop(WeightsKey key) {
  dropping_.insert(key);
  drop_idle_keys();
}

/// Decode does not know where the answer to a waiting prompt goes. A prompt that is complete was
/// handed over, or will be, and Decode answers for it.
void Prefill::drop_idle_keys() {
  std::erase_if(dropping_, [this](WeightsKey key) {
    const bool is_waited_for = std::ranges::any_of(submitted_, [key](const auto& each) {
      return WeightsKey{each.first.tenant, each.second.adapter} == key;
    });
    if (!is_waited_for) engine_->drop(key);
    return !is_waited_for;
  });
}

void Prefill::fill(EngineLoad& load, const EngineState& state) const {
  const uint64_t num_parked = parked_ ? 1 : 0;
  const uint64_t num_alive =
      num_parked + static_cast<uint64_t>(state.num_waiting + state.num_held + state.num_running);
  load.num_finished = num_received_ - std::min(num_received_, num_alive);
  load.num_received = num_received_;
  load.num_room = parked_ ? 0 : state.num_room;
  load.num_waiting = state.num_waiting;
}

bool Prefill::has_changed(const EngineLoad& told, const EngineLoad& now) const {
  return told.num_finished != now.num_finished || told.num_waiting != now.num_waiting ||
         told.num_received != now.num_received || told.num_room != now.num_room;
}

bool Prefill::idle() const { return submitted_.empty() && done_waiting_.empty() && !parked_; }

}  // namespace primerl
