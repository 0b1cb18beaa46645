#include "actors/router/router.h"

#include <algorithm>

namespace primerl {
namespace {

constexpr int64_t kReleasedPerHandler = 16;
constexpr Duration kLookForRoomEvery = Duration::milliseconds(1);

/// Aborts that may wait at one engine. A rollout keeps its place in flight until its request is
/// answered, and an engine that has not handled an abort answers nothing more: each place has at
/// most one request there that is unanswered, and one whose answer crossed its abort. A request
/// that took such a freed place comes after that abort, on the same path.
Amount aborts_in_flight() {
  return {[](const void*, std::span<const Tenant> tenants) {
            int64_t sum = 0;
            for (const auto& tenant : tenants) sum += 2 * tenant.inflight_max;
            return std::max<int64_t>(sum, 1);
          },
          "2 * max_inflight, summed over tenants"};
}

}  // namespace

Contract Router::contract() {
  using O = RouterOptions;
  return ContractOf<Router, O>("router", "chooses an engine for each request")
      .option("policy", &O::policy, one_of(route_policies()), "how an engine is chosen")
      .option("held_max", &O::held_max, at_least(1) | unit("requests"),
              "requests that wait for an engine; one more is refused")
      .option("sessions_max", &O::sessions_max, at_least(1) | unit("sessions"),
              "sessions remembered; the oldest is forgotten")
      .in("generate", &Router::on_generate, "a prompt to continue",
          refuse_with(&Router::refuse_generate))
      .in("load", &Router::on_load, "an engine's running totals", latest_wins())
      .in("cancel", &Router::on_cancel, "requests that nobody wants any more", optional_port())
      .timer("release", &Router::on_release, "more held requests can go")
      .out("prefill", &Router::prefill_, "to the chosen engine", addressed(),
           burst(kReleasedPerHandler))
      .out("abort", &Router::abort_, "to the engine that has the request", optional_port(),
           addressed(), burst(2 * kCancelRequestsMax), at_most(aborts_in_flight()))
      .out("refused", &Router::refused_, "the answer to a request that no engine took",
           burst(kCancelRequestsMax));
}

Router::Router(const RouterOptions& options)
    : options_(options), policy_(make_route_policy(options.policy)) {
  CHECK(policy_ != nullptr, "the checker lets no unknown route policy through");
}

Status Router::on_generate(const GenerateRequest& request) {
  const auto& delivery = services().delivery();
  Held held{request, delivery.tenant, delivery.ref, delivery.origin};
  if (cancelled_.contains({held.tenant, request.request})) {
    refuse(held, CompletionEnd::kCancelled, "cancelled before it reached the router");
    return ok();
  }
  // Held ones go first: a session's requests keep their order.
  if (held_.empty() && route(held)) return ok();
  if (static_cast<int64_t>(held_.size()) >= options_.held_max)
    return error(Code::kExhausted, "no engine has version {}, and {} requests wait already",
                 request.version, held_.size())
        .note("raise 'held_max' or lower 'max_inflight'");
  held_.push_back(std::move(held));
  services().count("requests_held", 1);
  return ok();
}

void Router::refuse_generate(const GenerateRequest& request, const Error& error) {
  const auto& delivery = services().delivery();
  refuse({request, delivery.tenant, delivery.ref, delivery.origin}, CompletionEnd::kRefused,
         error.text());
}

bool Router::route(const Held& held) {
  std::vector<EngineView> views;
  RouteQuestion question;
  question.session = held.request.session;
  question.session_key = mix(held.tenant.value, held.request.session);
  question.num_prompt_tokens = static_cast<int32_t>(held.request.prompt_tokens.size());
  const auto session = sessions_.find({held.tenant, held.request.session});
  for (const InstanceId engine : prefill_.targets()) {
    const auto found = engines_.find(engine);
    if (found == engines_.end()) continue;
    const EngineRecord& record = found->second;
    if (record.is_down || record.applied < held.request.version || prefill_.room(engine) <= 0)
      continue;
    if (session != sessions_.end() && session->second.engine == engine)
      question.sticky = static_cast<int32_t>(views.size());
    views.push_back(
        {engine, record.num_sent - record.num_finished, record.num_free_blocks, record.num_blocks});
  }
  if (views.empty()) return false;
  const size_t choice = policy_->choose(question, views);
  CHECK(choice < views.size(), "a route policy chose an engine that is not there");
  const InstanceId engine = views[choice].engine;
  ++engines_[engine].num_sent;
  remember(held, engine);
  prefill_.send(held.request,
                to(engine).for_tenant(held.tenant).answering(held.cause).to_origin_of(held.origin));
  return true;
}

void Router::remember(const Held& held, InstanceId engine) {
  const SessionName name{held.tenant, held.request.session};
  if (const auto old = sessions_.find(name); old != sessions_.end()) forget(old);
  const uint64_t touched = ++touches_;
  sessions_[name] = {engine,     held.request.request, held.request.attempt,
                     held.cause, held.origin,          touched};
  session_of_[{held.tenant, held.request.request}] = held.request.session;
  by_age_[touched] = name;
  engines_[engine].open.insert(name);
  if (static_cast<int64_t>(sessions_.size()) > options_.sessions_max)
    forget(sessions_.find(by_age_.begin()->second));
}

void Router::forget(std::map<SessionName, Session>::iterator session) {
  session_of_.erase({session->first.tenant, session->second.request});
  by_age_.erase(session->second.touched);
  engines_[session->second.engine].open.erase(session->first);
  sessions_.erase(session);
}

Status Router::on_load(const EngineLoad& load) {
  const auto targets = prefill_.targets();
  // A decode engine's load says nothing that its prefill half does not.
  if (std::find(targets.begin(), targets.end(), load.engine) == targets.end()) return ok();
  EngineRecord& record = engines_[load.engine];
  record.num_finished = std::min(std::max(record.num_finished, load.num_finished), record.num_sent);
  record.applied = std::max(record.applied, load.applied);
  record.num_free_blocks = load.num_free_blocks;
  record.num_blocks = load.num_blocks;
  record.is_down = false;
  if (record.num_finished == record.num_sent) {
    // All have ended: the sessions stay with the engine, their requests need no abort any more.
    for (const SessionName& name : record.open)
      session_of_.erase({name.tenant, sessions_.at(name).request});
    record.open.clear();
  }
  arm(release_held());
  return ok();
}

bool Router::release_held() {
  for (int64_t i = 0; i < kReleasedPerHandler && !held_.empty(); ++i) {
    if (!route(held_.front())) return false;
    held_.pop_front();
  }
  return !held_.empty();
}

/// Another turn: at once, or when there may be room for refusals again.
void Router::arm(bool has_more) {
  if (has_more || !refusals_.empty())
    services().set_timer("release", has_more ? Duration() : kLookForRoomEvery);
}

Status Router::on_release() {
  const bool may_refuse = answer_refused(kCancelRequestsMax);
  const bool may_release = release_held();
  arm(may_refuse || may_release);
  return ok();
}

bool Router::answer_refused(int64_t most) {
  for (auto asker = refusals_.begin(); asker != refusals_.end();) {
    auto& [origin, waiting] = *asker;
    for (int64_t room = refused_.room(origin); room > 0 && most > 0 && !waiting.empty(); --room) {
      const Refusal& refusal = waiting.front();
      Completion completion;
      completion.request = refusal.held.request.request;
      completion.session = refusal.held.request.session;
      completion.attempt = refusal.held.request.attempt;
      completion.end = refusal.end;
      completion.detail = refusal.detail;
      services().count("requests_refused", 1);
      refused_.send(std::move(completion), for_tenant(refusal.held.tenant)
                                               .answering(refusal.held.cause)
                                               .to_origin_of(refusal.held.origin));
      waiting.pop_front();
      --most;
    }
    asker = waiting.empty() ? refusals_.erase(asker) : std::next(asker);
  }
  return most == 0 && !refusals_.empty();
}

void Router::refuse_later(const Held& held, CompletionEnd end, std::string detail) {
  Refusal refusal{held, end, std::move(detail)};
  refusal.held.request.prompt_tokens.clear();
  refusals_[held.origin].push_back(std::move(refusal));
}

void Router::refuse(const Held& held, CompletionEnd end, std::string detail) {
  refuse_later(held, end, std::move(detail));
  arm(answer_refused(1));
}

Status Router::on_cancel(const Cancel& cancel) {
  const auto& delivery = services().delivery();
  if (cancel.requests.size() > kCancelRequestsMax)
    return error(Code::kInvalid, "a cancel names {} requests, at most {} are allowed",
                 cancel.requests.size(), kCancelRequestsMax);
  for (const uint64_t request : cancel.requests) {
    const RequestName name{delivery.tenant, request};
    const auto held = std::find_if(held_.begin(), held_.end(), [&](const Held& one) {
      return one.tenant == name.tenant && one.request.request == request;
    });
    if (held != held_.end()) {
      refuse(*held, CompletionEnd::kCancelled, "cancelled while it waited for an engine");
      held_.erase(held);
    } else if (const auto session = session_of_.find(name); session != session_of_.end()) {
      send_abort(sessions_.at({name.tenant, session->second}), name.tenant);
    } else {
      cancelled_.add(name);
    }
  }
  return ok();
}

void Router::send_abort(const Session& session, TenantSlot tenant) {
  const Abort abort{.request = session.request, .attempt = session.attempt};
  const auto options = SendOptions().for_tenant(tenant).to_origin_of(session.origin);
  const auto engines = prefill_.targets();
  const auto holders = abort_.targets();
  const auto index = std::find(engines.begin(), engines.end(), session.engine) - engines.begin();
  // The decode half of an engine is the one at the same place among the instances that only abort.
  std::ptrdiff_t others = 0;
  for (const InstanceId holder : holders) {
    const bool is_prefill = std::find(engines.begin(), engines.end(), holder) != engines.end();
    if (is_prefill ? holder == session.engine : others++ == index) {
      auto addressed_options = options;
      addressed_options.target = holder;
      abort_.send(abort, addressed_options);
    }
  }
}

Status Router::on_peer(const PeerEvent& event) {
  const bool is_down = event.kind == PeerEvent::Kind::kDown;
  const auto found = engines_.find(event.instance);
  if (found == engines_.end()) return ok();
  // An engine that ended a request before it died has answered it: the asker ignores a second one.
  const std::set<SessionName> open = found->second.open;
  for (const SessionName& name : open) {
    const auto session = sessions_.find(name);
    Held held;
    held.request.request = session->second.request;
    held.request.session = name.session;
    held.request.attempt = session->second.attempt;
    held.tenant = name.tenant;
    held.cause = session->second.cause;
    held.origin = session->second.origin;
    forget(session);
    refuse_later(held, CompletionEnd::kEngineLost, "the engine that had the request is gone");
  }
  found->second = EngineRecord();
  found->second.is_down = is_down;
  arm(answer_refused(kCancelRequestsMax));
  return ok();
}

}  // namespace primerl
