#include "actors/decode/decode.h"

#include <algorithm>
#include <utility>

#include "actors/common/completion.h"
#include "graph/tenancies.h"
#include "graph/tenant.h"

namespace primerl {
namespace {

constexpr int64_t kAnswersPerWorkCall = 64;
/// How often decode reports progress while its engine is paused. A run without any step for [graph]
/// stall_after counts as stalled.
constexpr Duration kHeldSignEvery = Duration::seconds(1);

}  // namespace

Contract Decode::contract() {
  return ContractOf<Decode, DecodeOptions>("decode", "decodes sequences and answers requests")
      .uses<Engine>("engine", &DecodeOptions::engine, "the engine it runs")
      .uses<WeightChannel>("weights", &DecodeOptions::weights,
                           "where new weights come from; \"none\": the engine keeps those of its "
                           "model folder")
      .in("request", &Decode::on_request, "a prompt whose KV is complete", handles_of("engine"))
      .in("abort", &Decode::on_abort, "a cancelled request", optional_port())
      .in("update", &Decode::on_update, "a new policy version", optional_port(), latest_wins())
      .in("hold", &Decode::on_hold, "pauses the engine for an owner, or ends that pause",
          optional_port())
      .out("completion", &Decode::completion_, "the one answer to a request", recorded(),
           to_origin(), work_burst(kAnswersPerWorkCall))
      .out("applied", &Decode::applied_out_, "new weights are applied", optional_port(), recorded())
      .out("load", &Decode::load_, "how busy the engine is", optional_port(), recorded(),
           work_burst(1))
      .timer("weights", &Decode::take_weights, "weights that had not arrived are fetched again")
      .timer("hold", &Decode::on_hold_end, "the lease of a pause may have ended")
      .works()
      .state([](auto& f) {
        using D = Decode;
        engine_fields(f);
        f("dropping", &D::dropping_)("running", &D::running_)("aborted", &D::aborted_)(
            "ended_early", &D::ended_early_)("finished", &D::finished_)("holds", &D::holds_)(
            "held_since", &D::held_since_)("last_cause", &D::last_cause_)(
            "num_finished", &D::num_finished_)("has_told_first_token", &D::has_logged_first_token_);
      });
}

Status Decode::on_request(const PrefillDone& done) {
  const auto& delivery = services().delivery();
  last_cause_ = delivery.ref;
  const RequestName name{delivery.tenant, done.request};
  const Known known{done.session, done.attempt, delivery.ref, delivery.origin};
  const SequenceId id(done.kv.id);
  if (const Status valid = check_handle(done.kv, name); !valid.ok()) {
    answer(refusal_of(valid.error()), name, known);
    return ok();
  }
  if (const Status taken = engine_->take_over(id); !taken.ok()) {
    // The sequence ended before this message arrived, or another engine has it.
    take_finished();
    const auto ended = ended_early_.extract(id);
    answer(ended.empty() ? refusal_of(taken.error()) : ended.mapped(), name, known);
    return ok();
  }
  running_[name] = known;
  return ok();
}

Status Decode::check_handle(const KvHandle& kv, RequestName name) const {
  const auto& delivery = services().delivery();
  if (kv.owner != delivery.sender)
    return error(Code::kInvalid, "the KV handle belongs to instance {}, but instance {} sent it",
                 kv.owner, delivery.sender);
  if (kv.incarnation != services().incarnation())
    return error(Code::kInvalid,
                 "the KV handle is of incarnation {} of the process, the current one is {}",
                 kv.incarnation, services().incarnation());
  if (!is_nameable(name) || SequenceId(kv.id) != sequence_of(name))
    return error(Code::kInvalid, "the KV handle belongs to another request");
  return ok();
}

FinishEvent Decode::refusal_of(const Error& why) {
  services().count("handles_refused", 1);
  FinishEvent event;
  event.reason = FinishReason::kRefused;
  event.detail = fmt::format("decode cannot take the prompt over: {}", why.text());
  return event;
}

Status Decode::on_abort(const Abort& abort) {
  const auto& delivery = services().delivery();
  const RequestName name{delivery.tenant, abort.request};
  if (!is_nameable(name)) return ok();
  last_cause_ = delivery.ref;
  if (running_.count(name) == 0)
    aborted_.add(name, {0, abort.attempt, delivery.ref, delivery.origin});
  engine_->abort(sequence_of(name));
  return ok();
}

Status Decode::on_hold(const EngineHold& hold) {
  if (hold.lease != Duration())
    RETURN_IF_ERROR(holds_.hold(hold.owner, hold.lease, services().now()));
  else if (!holds_.let_go(hold.owner) && services().delivery().sender.is_none())
    // A person gets an error. For an actor whose lease has ended there is nothing left to do.
    return error(Code::kNotFound, "'{}' has paused nothing", hold.owner);
  apply_holds();
  return ok();
}

Status Decode::on_hold_end() {
  for (const auto& owner : holds_.expire(services().now())) {
    services().count("holds_expired", 1);
    services().log(
        LogLevel::kWarning,
        fmt::format("the lease of '{}' has ended: it no longer pauses the engine", owner));
  }
  apply_holds();
  return ok();
}

/// A drain ends all pauses: a paused engine could not finish its sequences.
Status Decode::drain() {
  holds_.clear();
  apply_holds();
  return EngineUser::drain();
}

/// Requests of the tenant are left only if it failed; their answers have no receiver.
Status Decode::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  RETURN_IF_ERROR(EngineUser::on_tenant(slot, kind));
  if (kind != TenantChange::Kind::kLeave) return ok();
  for (const auto& [name, known] : running_)
    if (name.tenant == slot) engine_->abort(sequence_of(name));
  std::erase_if(running_, [slot](const auto& each) { return each.first.tenant == slot; });
  aborted_.drop(slot);
  std::erase_if(ended_early_,
                [slot](const auto& each) { return request_of(each.first).tenant == slot; });
  std::erase_if(finished_,
                [slot](const Finished& each) { return request_of(each.id).tenant == slot; });
  return ok();
}

bool Decode::is_present(RequestName name) const {
  const auto tenants = services().tenants();
  return std::ranges::find(tenants, name.tenant) != tenants.end() &&
         name.request >= first_request_of(services().tenant(name.tenant).tenancy);
}

void Decode::apply_holds() {
  const Time now = services().now();
  if (const auto end = holds_.next_end())
    services().set_timer("hold", std::clamp(*end - now, Duration(), kHeldSignEvery));
  else
    services().cancel_timer("hold");
  engine_->set_paused(holds_.is_held());
  engine_->show_holders(holds_.holders(now));
  if (holds_.is_held() == held_since_.has_value()) return;
  if (holds_.is_held()) {
    held_since_ = now;
    services().count("engine_pauses", 1);
    services().log(LogLevel::kInfo, fmt::format("the engine is paused for '{}'", holds_.owners()));
    return;
  }
  const Duration paused = now - *std::exchange(held_since_, std::nullopt);
  services().count("engine_paused_ms", paused.to_milliseconds());
  services().log(LogLevel::kInfo,
                 fmt::format("the engine resumes after {:.3f} s", paused.to_seconds()));
}

Result<bool> Decode::work() {
  // An actor that resumed from saved state may have a new engine, which is not paused yet.
  engine_->set_paused(holds_.is_held());
  log_first_token();
  take_finished();
  for (int64_t i = 0; i < kAnswersPerWorkCall && !finished_.empty(); ++i) {
    answer(finished_.front());
    finished_.pop_front();
  }
  const EngineState state = engine_->state();
  if (state.num_waiting == 0 && state.num_held == 0)
    for (const WeightsKey key : std::exchange(dropping_, {})) engine_->drop(key);
  send_load(state);
  return engine_->has_work() || !finished_.empty();
}

void Decode::take_finished() {
  for (auto& event : engine_->take_finished()) {
    const RequestName name = request_of(event.id);
    if (!is_present(name)) continue;
    const bool is_passed_on = event.was_prefilled && running_.count(name) == 0;
    if (is_passed_on)
      ended_early_.insert_or_assign(event.id, Finished{std::move(event)});
    else
      finished_.push_back(Finished{std::move(event)});
  }
}

void Decode::answer(const FinishEvent& event) {
  const RequestName name = request_of(event.id);
  Known known;
  known.cause = last_cause_;
  if (const auto running = running_.find(name); running != running_.end()) {
    known = running->second;
    running_.erase(running);
  } else if (const Known* aborted = aborted_.find(name); aborted != nullptr) {
    known = *aborted;
  }
  answer(event, name, known);
}

void Decode::answer(const FinishEvent& event, RequestName name, const Known& known) {
  ++num_finished_;
  services().count("generation_tokens", static_cast<int64_t>(event.tokens.size()));
  completion_.send(completion_of(name.request, known.session, known.attempt, event),
                   for_tenant(name.tenant).answering(known.cause).to_origin_of(known.origin));
}

void Decode::log_first_token() {
  if (has_logged_first_token_ || engine_->state().num_decode_tokens == 0) return;
  has_logged_first_token_ = true;
  services().log(LogLevel::kInfo, kFirstTokenLine);
}

void Decode::fill(EngineLoad& load, const EngineState& state) const {
  load.num_finished = num_finished_;
  load.num_waiting = state.num_held;
}

bool Decode::has_changed(const EngineLoad& told, const EngineLoad& now) const {
  return told.num_finished != now.num_finished || told.num_running != now.num_running;
}

bool Decode::idle() const { return running_.empty() && finished_.empty(); }

}  // namespace primerl
