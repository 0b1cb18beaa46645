#include "actors/tinker/tinker.h"

#include <algorithm>
#include <utility>

#include "actors/common/request_name.h"
#include "graph/base/file_digest.h"

namespace primerl {

using namespace tinker;  // NOLINT: its names are those of the wire

namespace {

// Requests that the listener may hand over before the next work call.
constexpr int64_t kAcceptsOpen = 256;
// Calls of one step are numbered from its own number.
constexpr int kStepCallBits = 16;
// The client repeats a call that takes 45 s.
constexpr Duration kHold = Duration::seconds(40);
// Rollouts number their requests from 0, a gateway from 2^47.
constexpr uint64_t kFirstGenerate = uint64_t{1} << (kRequestBits - 2);
// As many as a trainer keeps (actors/trainer/client_steps.h).
constexpr int64_t kSnapshotsMost = 16;

Amount num_tenants() {
  return {[](const void*, std::span<const Tenant> tenants) { return std::ssize(tenants); },
          "number of tenants"};
}

Status check_content_type(Route route, const ClientRequest& client) {
  const bool wants_protobuf = route == Route::kForwardBackward;
  if (client.method != "POST" || (client.content_type == kProtobufType) == wants_protobuf)
    return ok();
  return error(Code::kInvalid, "the body of {} is '{}'", client.path,
               client.content_type.empty() ? kJsonType : client.content_type)
      .note(fmt::format("send {}", wants_protobuf ? kProtobufType : kJsonType));
}

}  // namespace

Contract Tinker::contract() {
  using O = TinkerOptions;
  const Amount one_each = num_tenants();
  return ContractOf<Tinker, O>("tinker", "serves clients of Tinker's SDK, which train tenants")
      .uses<Outside>("listener", &O::listener, "the resource of kind \"outside\" that listens")
      .uses<Tokenizer>("tokenizer_of", &O::model, "the model whose tokenizer it uses")
      .option("tokenizer", &O::tokenizer, any(),
              "the name or folder that clients give to AutoTokenizer; empty: the model's folder")
      .option("max_inflight", &O::max_inflight, count_from(1) | unit("sequences"),
              "sequences at once, of all tenants; of one tenant at most its 'inflight'")
      .option("max_waiting", &O::max_waiting, count_from(1) | unit("sequences"),
              "sequences of one tenant that wait to be sent; further ones get the status 429")
      .option("attempts_max", &O::attempts_max, count_from(0),
              "engine losses or failures that one sequence survives")
      .option("snapshots_max", &O::snapshots_max, between(1, kSnapshotsMost) | unit("snapshots"),
              "weights for samplers that one tenant keeps, at most its 'snapshots'; the one unused "
              "longest is dropped")
      .option("sessions_max", &O::sessions_max, between(1, 4096) | unit("sessions"),
              "open sessions of one tenant; a further one gets the status 429")
      .option("samplers_max", &O::samplers_max, between(1, 65536) | unit("samplers"),
              "samplers of one tenant; the one unused longest ends")
      .option("sample_timeout", &O::sample_timeout, above(0),
              "how long a request for samples may take; then it fails")
      .option("train_timeout", &O::train_timeout, above(0),
              "longest time of one request at the trainer; then it fails")
      .option("live_timeout", &O::live_timeout, above(0),
              "longest time until every engine has published weights")
      .option("session_timeout", &O::session_timeout, above(0),
              "how long a session without a request stays open; clients send one every 10 s")
      .in("completion", &Tinker::on_completion, "the one answer to a generation",
          at_most(&O::max_inflight, "max_inflight"))
      .in("policy", &Tinker::on_policy, "a version that every engine has", latest_wins())
      .in("passed", &Tinker::on_passed, "the answer to a pass", at_most(one_each))
      .in("updated", &Tinker::on_updated, "the answer to an update", at_most(one_each))
      .in("weights_done", &Tinker::on_weights_done, "weights are saved, loaded or published",
          at_most(one_each))
      .timer("deadline", &Tinker::on_deadline,
             "a client, a session or an answer waited long enough")
      .out("generate", &Tinker::generate_, "a prompt to continue", burst(0),
           work_burst(kSentPerWorkCall))
      .out("cancel", &Tinker::cancel_, "requests whose samples have no client", burst(0),
           work_burst(kCancelsPerWorkCall), at_most(&O::max_inflight, "max_inflight"))
      .out("pass", &Tinker::pass_, "data to compute losses and gradients of", burst(0),
           work_burst(one_each))
      .out("update", &Tinker::update_, "a step by the open gradients", burst(0),
           work_burst(one_each))
      .out("weights", &Tinker::weights_, "weights to reset, save, load or publish", burst(0),
           work_burst(one_each))
      .works()
      .single()
      .state([](auto& f) {
        using T = Tinker;
        f("tenants", &T::tenants_)("sessions", &T::sessions_)(
            "ended_sessions", &T::ended_sessions_)("left", &T::left_)("models", &T::models_)(
            "samplers", &T::samplers_)("saved", &T::saved_)("jobs", &T::jobs_)(
            "samples", &T::samples_)("requests", &T::requests_)("polls", &T::polls_)(
            "base_waits", &T::base_waits_)("order", &T::order_)("answers", &T::answers_)(
            "asked", &T::asked_)("num_accepts", &T::num_accepts_)("num_closed", &T::num_closed_)(
            "next_session", &T::next_session_)("next_request", &T::next_request_)(
            "next_generate", &T::next_generate_)("num_used", &T::num_used_)(
            "queued_bytes", &T::queued_bytes_)("armed", &T::armed_)("routers", &T::routers_)(
            "trainers", &T::trainers_)("is_draining", &T::is_draining_);
      });
}

Status Tinker::start(Resources& resources) {
  listener_ = &resources.get<Outside>("listener");
  tokenizer_ = &resources.get<Tokenizer>("tokenizer_of");
  next_generate_ = kFirstGenerate;
  return ok();
}

Result<bool> Tinker::work() {
  num_asked_ = 0;
  if (!is_draining_) {
    RETURN_IF_ERROR(receive_answers());
    RETURN_IF_ERROR(keep_calls_open());
    send_jobs();
    send_waiting();
  }
  send_cancels();
  return std::ranges::any_of(tenants_,
                             [](const auto& each) { return !each.second.to_cancel.empty(); }) ||
         may_send_job() || (may_send() && !next_tenant().is_none());
}

Status Tinker::drain() {
  is_draining_ = true;
  listener_->stop();  // it refuses what has no reply
  std::vector<uint64_t> open;
  for (const auto& [number, sample] : samples_) open.push_back(number);
  for (const uint64_t number : open) stop_sample(number);
  asked_.clear();
  polls_.clear();
  base_waits_.clear();
  return ok();
}

bool Tinker::idle() const {
  return std::ranges::all_of(tenants_, [this](const auto& each) {
    const TenantState& tenant = each.second;
    const bool is_at_trainer = tenant.running != 0 && jobs_.at(tenant.running).is_sent;
    return !is_at_trainer && tenant.num_inflight == 0 && tenant.to_cancel.empty();
  });
}

Status Tinker::ask(AskedKind kind, std::string body, uint64_t future) {
  OutsideCall call;
  call.id = (services().delivery().ref.step << kStepCallBits) + num_asked_++;
  call.body = std::move(body);
  const uint64_t id = call.id;
  RETURN_IF_ERROR(listener_->ask(std::move(call)));
  asked_.emplace(id, Asked{kind, future});
  return ok();
}

Status Tinker::keep_calls_open() {
  for (; num_accepts_ < kAcceptsOpen; ++num_accepts_)
    RETURN_IF_ERROR(ask(AskedKind::kAccept, accept_call()));
  for (; num_closed_ < 1; ++num_closed_) RETURN_IF_ERROR(ask(AskedKind::kClosed, closed_call()));
  return ok();
}

Status Tinker::receive_answers() {
  for (const OutsideAnswer& given : listener_->receive_answers()) {
    const auto found = asked_.find(given.id);
    if (found == asked_.end()) continue;
    const Asked asked = found->second;
    asked_.erase(found);
    if (asked.kind == AskedKind::kReply) {
      const auto sent = read_sent(given.body);
      if (!sent.ok() || !*sent)
        services().count("replies_lost", 1);
      else if (asked.future != 0)
        answers_.forget(asked.future);
    } else if (asked.kind == AskedKind::kClosed) {
      --num_closed_;
      ASSIGN_OR_RETURN(const auto closed, read_closed(given.body));
      on_closed(closed);
    } else {
      --num_accepts_;
      ASSIGN_OR_RETURN(const ClientRequest client, read_client_request(given.body));
      on_request(given.id, client);
    }
  }
  return ok();
}

void Tinker::on_request(uint64_t call, const Client& client) {
  services().count("client_requests", 1);
  const Status done = [&]() -> Status {
    ASSIGN_OR_RETURN(const RouteMatch match, read_route(client.method, client.path));
    RETURN_IF_ERROR(check_key(client));
    RETURN_IF_ERROR(check_content_type(match.route, client));
    if (match.route == Route::kRetrieveFuture) return retrieve(call, client);
    if (match.route == Route::kCreateSampler) return create_sampler(call, client);
    ASSIGN_OR_RETURN(std::string body, answer(match, client));
    reply(call, 200, std::move(body), client.request_id);
    return ok();
  }();
  if (!done.ok()) refuse_call(call, done.error(), client.request_id);
}

Result<std::string> Tinker::answer(const RouteMatch& match, const Client& client) {
  switch (match.route) {
    case Route::kClientConfig:
      return client_config_answer();
    case Route::kDynamicConfig:
      return dynamic_config_answer();
    case Route::kTelemetry:
      return telemetry_answer();
    case Route::kHealth:
      return health_answer();
    case Route::kCapabilities:
      return capabilities(client);
    case Route::kCreateSession:
      return create_session(client);
    case Route::kHeartbeat:
      return heartbeat(client);
    case Route::kFinishSession:
      return finish_session(match.name, client);
    case Route::kCreateModel:
      return create_model(client);
    case Route::kUnloadModel:
      return unload_model(client);
    case Route::kGetInfo:
      return get_info(client);
    case Route::kForwardBackward:
      return forward_backward(client);
    case Route::kOptimStep:
      return optim_step(client);
    case Route::kSaveWeights:
      return save_weights(client);
    case Route::kSaveForSampler:
      return save_for_sampler(client);
    case Route::kLoadWeights:
      return load_weights(client);
    case Route::kGetSampler:
      return get_sampler(match.name, client);
    case Route::kJoinSampler:
      return join_sampler(client);
    case Route::kSample:
      return sample(client);
    case Route::kCancelFuture:
      return cancel_future(client);
    case Route::kModels:
      return models_of_client(client);
    case Route::kModel:
      return model_of_client(match.name, client);
    case Route::kModelWeights:
      return weights_of_model(match.name, client);
    case Route::kDeleteWeights:
      return delete_weights(match.name, client);
    case Route::kExpireWeights:
      return expire_weights(match.name, client);
    case Route::kPublishWeights:
      return error(Code::kInvalid, "this server shows no weights to other tenants");
    case Route::kAllWeights:
      return weights_of_client(client);
    case Route::kWeightsInfo:
      return weights_info(client);
    case Route::kSessions:
      return sessions_of_client(client);
    case Route::kSession:
      return session_of_client(match.name, client);
    case Route::kRetrieveFuture:
    case Route::kCreateSampler:
      break;
  }
  return error(Code::kInternal, "a route without an answer at once");
}

Status Tinker::retrieve(uint64_t call, const Client& client) {
  ASSIGN_OR_RETURN(const RetrieveFuture wanted, read_retrieve_future(client.body));
  const TenantSlot tenant = answers_.tenant_of(wanted.request);
  if (tenant.is_none() || !may_use(client, tenant))
    return error(Code::kNotFound, "no request '{}'", request_name(wanted.request));
  ASSIGN_OR_RETURN(const StoredAnswer* const found, answers_.find(wanted.request, tenant));
  if (found != nullptr) {
    reply_answer(call, *found, wanted.request, client.request_id);
    return ok();
  }
  touch(session_of(wanted.request));
  polls_.emplace(call, Poll{wanted.request, client.request_id, services().now() + kHold});
  wake_at(services().now() + kHold);
  return ok();
}

/// The sequences that are done are not kept: the client does not fetch them.
Result<std::string> Tinker::cancel_future(const Client& client) {
  ASSIGN_OR_RETURN(const RetrieveFuture wanted, read_retrieve_future(client.body));
  const TenantSlot tenant = answers_.tenant_of(wanted.request);
  if (tenant.is_none() || !may_use(client, tenant))
    return error(Code::kNotFound, "no request '{}'", request_name(wanted.request));
  if (jobs_.contains(wanted.request))
    return error(Code::kInvalid, "request '{}' trains, only samples can be cancelled",
                 request_name(wanted.request));
  if (samples_.contains(wanted.request))
    fail_sample(wanted.request, error(Code::kCancelled, "the client cancelled the request"));
  return empty_answer();
}

void Tinker::reply(uint64_t call, int32_t status, std::string body, std::string request_id) {
  ClientReply made;
  made.request = call;
  made.status = status;
  made.request_id = std::move(request_id);
  made.body = std::move(body);
  if (!ask(AskedKind::kReply, reply_call(made)).ok()) services().count("replies_lost", 1);
}

void Tinker::refuse_call(uint64_t call, const Error& error, const std::string& request_id) {
  services().count("requests_refused", 1);
  reply(call, http_status(error), refusal(error), request_id);
}

void Tinker::reply_answer(uint64_t call, const StoredAnswer& answer, uint64_t future,
                          std::string request_id) {
  ClientReply made;
  made.request = call;
  made.request_id = std::move(request_id);
  made.body.assign(answer.body.begin(), answer.body.end());
  if (answer.is_protobuf) made.content_type = kProtobufType;
  if (!ask(AskedKind::kReply, reply_call(made), future).ok()) services().count("replies_lost", 1);
}

void Tinker::complete(uint64_t future, std::string_view body, bool is_protobuf) {
  if (const Status kept = answers_.complete(future, body, is_protobuf, services().now());
      !kept.ok())
    return fail(future, kept.error());
  wake_at(services().now() + answers_.keep());
  const TenantSlot tenant = answers_.tenant_of(future);
  if (tenant.is_none()) return;  // it is not a client's
  const auto found = answers_.find(future, tenant);
  for (auto poll = polls_.begin(); poll != polls_.end();) {
    if (poll->second.future != future) {
      ++poll;
      continue;
    }
    if (found.ok() && *found != nullptr)
      reply_answer(poll->first, **found, future, poll->second.request_id);
    poll = polls_.erase(poll);
  }
}

void Tinker::fail(uint64_t future, const Error& error) {
  services().count("requests_failed", 1);
  complete(future, failed_answer(error));
}

Status Tinker::check_futures(TenantSlot tenant) const {
  return answers_.check_open(tenant, num_clients());
}

void Tinker::on_closed(const std::vector<uint64_t>& calls) {
  for (const uint64_t call : calls)
    if (polls_.erase(call) + base_waits_.erase(call) > 0) services().count("clients_gone", 1);
}

/// Why a request has no answer yet. The client shows it to a person.
QueueState Tinker::queue_state(uint64_t future) const {
  if (paused_.contains(answers_.tenant_of(future))) return QueueState::kPausedCapacity;
  const auto job = jobs_.find(future);
  const bool waits = job != jobs_.end() && !job->second.is_sent && waits_for_session(job->second);
  return waits ? QueueState::kPausedCapacity : QueueState::kActive;
}

Time Tinker::next_deadline() const {
  Time next = std::min(order_.next_expiry(), answers_.next_expiry());
  for (const auto& [call, poll] : polls_) next = std::min(next, poll.deadline);
  for (const auto& [call, wait] : base_waits_) next = std::min(next, wait.deadline);
  for (const auto& [number, sample] : samples_) next = std::min(next, sample.deadline);
  for (const auto& [name, session] : sessions_)
    next = std::min(next, session.seen + options_.session_timeout);
  for (const auto& [path, saved] : saved_) next = std::min(next, saved.expires);
  for (const auto& [slot, tenant] : tenants_)
    if (tenant.running != 0) next = std::min(next, jobs_.at(tenant.running).deadline);
  for (const auto& [slot, tenant] : tenants_)
    for (const auto& [adapter, snapshot] : tenant.snapshots)
      next = std::min(next, snapshot.expires);
  return next;
}

void Tinker::wake_at(Time time) {
  if (time == kNever || (armed_ && *armed_ <= time)) return;
  armed_ = time;
  services().set_timer("deadline", std::max(time - services().now(), Duration()));
}

Status Tinker::on_deadline() {
  num_asked_ = 0;
  armed_.reset();
  const Time now = services().now();
  for (auto poll = polls_.begin(); poll != polls_.end();) {
    if (poll->second.deadline > now) {
      ++poll;
      continue;
    }
    const uint64_t future = poll->second.future;
    reply(poll->first, 200, try_again_answer(future, queue_state(future)), poll->second.request_id);
    poll = polls_.erase(poll);
  }
  for (const auto& [number, missing] : order_.expire(now)) {
    jobs_.erase(number);
    for (auto poll = polls_.begin(); poll != polls_.end();) {
      if (poll->second.future != number) {
        ++poll;
        continue;
      }
      const Error late = error(Code::kCancelled, "request {} of the model did not come", missing);
      reply(poll->first, http_status(late), refusal(late), poll->second.request_id);
      poll = polls_.erase(poll);
    }
    answers_.forget(number);  // it may be sent again
  }
  std::vector<uint64_t> late;
  for (const auto& [number, sample] : samples_)
    if (sample.deadline <= now) late.push_back(number);
  for (const uint64_t number : late)
    fail_sample(number,
                error(Code::kDeadline, "no samples within {}", to_string(options_.sample_timeout)));
  expire_jobs();
  expire_sessions();
  expire_saved();
  expire_base_waits();
  answers_.expire(now);
  wake_at(next_deadline());
  return ok();
}

Status Tinker::on_peer(const PeerEvent& event) {
  num_asked_ = 0;
  if (event.kind != PeerEvent::Kind::kDown) return ok();
  if (trainers_.contains(event.instance)) {
    for (auto& [slot, tenant] : tenants_) {
      if (tenant.running == 0 || !jobs_.at(tenant.running).is_sent) continue;
      fail_job(tenant.running,
               error(Code::kUnavailable, "the trainer is gone, and its open gradients too"));
    }
  }
  if (!routers_.contains(event.instance)) return ok();
  for (auto& [slot, tenant] : tenants_) tenant.forget_router();
  std::vector<PartRef> lost;
  for (const auto& [request, part] : requests_) lost.push_back(part);
  requests_.clear();
  for (const PartRef& part : lost) samples_.at(part.sample).parts[part.index].request = 0;
  std::ranges::sort(lost, std::greater());  // the oldest is first again
  for (const PartRef& part : lost)
    if (samples_.contains(part.sample)) try_again(part, "the router is gone");
  return ok();
}

}  // namespace primerl
