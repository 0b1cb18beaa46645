#include "actors/router/router.h"

#include <algorithm>
#include <set>
#include <utility>

#include "actors/common/completion.h"

namespace primerl {
namespace {

constexpr int64_t kReleasedPerHandler = 16;
constexpr Duration kLookForSpaceEvery = Duration::milliseconds(1);
/// Fewest requests that may be held, whatever the tenants' inflight_max.
constexpr int64_t kHeldAtLeast = 64;
/// A live version has been applied by every engine that Broadcaster has not set aside. The load
/// that reports it may arrive a little later. An engine that has not reported it for this long
/// counts as set aside.
constexpr Duration kLeftBehindAfter = Duration::seconds(10);

/// Most aborts that may wait at one engine. A rollout counts as in flight until its request is
/// answered, and an engine answers nothing more until it has handled the abort. Each rollout in
/// flight therefore has at most one unanswered request there, and one whose answer crossed its
/// abort. A request that reuses the freed in-flight slot is sent after that abort, on the same
/// path.
Amount aborts_in_flight() {
  return {[](const void*, std::span<const Tenant> tenants) {
            int64_t sum = 0;
            for (const auto& tenant : tenants) sum += 2 * tenant.inflight_max;
            return std::max<int64_t>(sum, 1);
          },
          "2 * max_inflight (of a teacher: requests_max), summed over tenants"};
}

}  // namespace

Contract Router::contract(std::vector<RoutePolicyContract> policies) {
  using O = RouterOptions;
  std::vector<std::string> names;
  for (const auto& policy : policies) names.push_back(policy.name);
  return ContractOf<Router, O>("router", "chooses an engine for each request")
      .option("policy", &O::policy, one_of(names), "how an engine is chosen")
      .option("sessions_max", &O::sessions_max, count_from(1) | unit("sessions"),
              "sessions remembered; the oldest is forgotten")
      .option("prefix_blocks_max", &O::prefix_blocks_max, count_from(1) | unit("blocks"),
              "prompt prefixes remembered for each engine, in blocks of 32 tokens; used by the "
              "policy cache_aware")
      .in("generate", &Router::on_generate, "a prompt to continue",
          refuse_with(&Router::refuse_generate))
      .in("load", &Router::on_load, "an engine's running totals", latest_wins())
      .in("cancel", &Router::on_cancel, "cancelled requests", optional_port())
      .timer("release", &Router::on_release, "held requests can be sent")
      .out("prefill", &Router::prefill_, "to the chosen engine", addressed(),
           burst(kReleasedPerHandler))
      .out("abort", &Router::abort_, "to the engine that has the request", optional_port(),
           addressed(), burst(2 * kCancelRequestsMax), at_most(aborts_in_flight()))
      .out("refused", &Router::refused_, "the answer to a request that no engine accepted",
           to_origin(), burst(kCancelRequestsMax))
      .made_by([policies = std::move(policies)](const O& options) {
        return std::make_unique<Router>(options, policies);
      })
      .state([](auto& f) {
        using R = Router;
        f("policy", &R::policy_)("has_told_fault", &R::has_logged_fault_)("engines", &R::engines_)(
            "in_use", &R::in_use_)("is_in_use_old", &R::in_use_is_stale_)(
            "sessions", &R::sessions_)("requests", &R::requests_)("held", &R::held_)(
            "is_paused", &R::is_paused_)("refusals", &R::refusals_)("cancelled", &R::cancelled_)(
            "dropped", &R::dropped_);
      });
}

Router::Router(const RouterOptions& options, const std::vector<RoutePolicyContract>& policies)
    : options_(options), policy_(make_route_policy(options.policy, policies)) {
  CHECK(policy_ != nullptr, "an unknown routing policy passed the check");
  if (policy_->wants_known_tokens()) namer_.emplace();
}

Status Router::start(Resources&) {
  count_limits();
  return ok();
}

Status Router::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  count_limits();
  if (kind == TenantChange::Kind::kLeave) drop_tenant(slot);
  if (is_paused_) services().set_timer("release", Duration());
  return ok();
}

/// Requests of the tenant are left only if it failed; their answers have no receiver. Names of its
/// sessions and requests come never again.
void Router::drop_tenant(TenantSlot slot) {
  (void)held_.take_all(slot, [](const HeldRequest&) { return true; });
  std::erase_if(requests_, [slot](const auto& each) { return each.first.tenant == slot; });
  for (auto& [sender, refusals] : refusals_)
    std::erase_if(refusals, [slot](const Refusal& each) { return each.held.tenant == slot; });
  std::erase_if(refusals_, [](const auto& each) { return each.second.empty(); });
  for (auto& [engine, record] : engines_) {
    std::vector<WeightsKey> keys;
    for (const auto& [key, version] : record.applied.of_tenant(slot)) keys.push_back(key);
    for (const WeightsKey key : keys) record.applied.erase(key);
    std::erase_if(record.behind, [slot](const auto& each) { return each.first.tenant == slot; });
  }
  sessions_.forget_if([slot](const SessionName& name) { return name.tenant == slot; });
  dropped_.forget_if([slot](const WeightsKey& key) { return key.tenant == slot; });
  cancelled_.drop(slot);
  in_use_is_stale_ = true;
}

void Router::count_limits() {
  int64_t inflight = 0;
  for (const TenantSlot slot : services().tenants())
    inflight += services().tenant(slot).inflight_max;
  held_max_ = static_cast<size_t>(std::max(inflight, kHeldAtLeast));
  owed_max_ = std::max(static_cast<size_t>(options_.sessions_max), 2 * held_max_);
}

Status Router::on_generate(const GenerateRequest& request) {
  const auto& delivery = services().delivery();
  for (const uint64_t answered : request.answered) requests_.erase({delivery.tenant, answered});
  HeldRequest held{request, delivery.tenant, delivery.ref, delivery.origin};
  held.request.answered.clear();
  if (cancelled_.contains(held.name())) {
    refuse(std::move(held), FinishReason::kCancelled, "cancelled before it reached the router");
    return ok();
  }
  if (const size_t count = request.engine < 0 ? 0 : all_engines().size();
      request.engine >= 0 && std::cmp_greater_equal(request.engine, count)) {
    refuse(std::move(held), FinishReason::kRefused,
           fmt::format("it asks for engine {}, and there are {}, numbered from 0", request.engine,
                       count));
    return ok();
  }
  if (const WeightsKey key = key_of(held); is_dropped(key)) {
    refuse(std::move(held), FinishReason::kRefused, detail_of_dropped(key));
    return ok();
  }
  // Held requests go first, so that a session's requests keep their order.
  const bool is_first = held_.is_empty();
  if (is_first) refresh_in_use();
  if (is_first && route(held)) return ok();
  hold(std::move(held));
  arm(!is_first && release_held());
  return ok();
}

void Router::refuse_generate(const GenerateRequest& request, const Error& error) {
  const auto& delivery = services().delivery();
  refuse({request, delivery.tenant, delivery.ref, delivery.origin}, FinishReason::kRefused,
         error.text());
}

void Router::hold(HeldRequest held) {
  const HeldLane lane = lane_of(held);
  held_.add(std::move(held), lane);
  services().count("requests_held", 1);
  if (held_.size() < held_max_ || is_paused_) return;
  // More requests than the tenants may have in flight: the sender waits, as at any full edge.
  is_paused_ = true;
  services().pause("generate");
}

RouteQuestion Router::question_of(const HeldRequest& held) const {
  RouteQuestion question;
  question.session = held.request.session;
  question.session_key = mix(held.tenant.value, held.request.session);
  question.num_prompt_tokens = static_cast<int32_t>(held.request.num_prompt_tokens());
  return question;
}

std::vector<uint64_t> Router::block_names_of(const HeldRequest& held) {
  // A later turn sends only the end of its prompt, and that has no block names without its
  // beginning.
  if (!namer_ || held.request.known.num_tokens > 0) return {};
  const BlockScope scope{key_of(held), held.request.salt, held.request.version};
  return namer_->names_of(held.request.prompt_tokens, scope);
}

size_t Router::checked(size_t index, size_t count) {
  if (index < count) return index;
  services().count("policy_faults", 1);
  if (!std::exchange(has_logged_fault_, true))
    services().log(
        LogLevel::kWarning,
        fmt::format("routing policy '{}' chose engine {} of {}: the first one is used instead",
                    options_.policy, index, count));
  return 0;
}

/// An engine that is down is not a target, but keeps its number.
std::vector<InstanceId> Router::all_engines() const {
  const auto targets = prefill_.targets();
  std::set<InstanceId> all(targets.begin(), targets.end());
  for (const auto& [engine, record] : engines_) all.insert(engine);
  return {all.begin(), all.end()};
}

InstanceId Router::home_of(const HeldRequest& held) {
  if (const int32_t index = held.request.engine; index >= 0) {
    const auto engines = all_engines();
    return std::cmp_less(index, engines.size()) ? engines[static_cast<size_t>(index)]
                                                : InstanceId();
  }
  const auto in_use = in_use_.find(key_of(held));
  if (in_use == in_use_.end()) return {};
  const auto& engines = in_use->second;
  const auto home = policy_->home(question_of(held), engines);
  return home ? engines[checked(*home, engines.size())] : InstanceId();
}

HeldLane Router::lane_of(const HeldRequest& held) {
  return {held.request.version, home_of(held), held.request.adapter};
}

bool Router::can_take(InstanceId engine, const EngineRecord& record,
                      const HeldRequest& held) const {
  const auto num_underway = static_cast<int64_t>(record.num_sent - record.num_received);
  return !record.is_down && has_version(record, held) && record.num_room > num_underway &&
         prefill_.room(engine) > 0;
}

bool Router::is_allowed(const EngineRecord& record) const {
  const auto state = record.breaker.state(services().now());
  return state == CircuitBreaker::State::kClosed ||
         (state == CircuitBreaker::State::kHalfOpen && record.num_sent == record.num_finished);
}

bool Router::has_sound_engine(const HeldRequest& held) const {
  const auto in_use = in_use_.find(key_of(held));
  if (in_use == in_use_.end()) return false;
  return std::ranges::any_of(in_use->second, [&](InstanceId engine) {
    const EngineRecord& record = engines_.at(engine);
    return record.breaker.state(services().now()) == CircuitBreaker::State::kClosed &&
           !record.is_down && has_version(record, held);
  });
}

bool Router::route(const HeldRequest& held) {
  std::vector<EngineView> views;
  RouteQuestion question = question_of(held);
  const SessionPlace* session = sessions_.find(held.session());
  const InstanceId home = home_of(held);
  // A later attempt: the engine of the attempt before was lost or failed it, and may fail it again.
  const bool is_again = session != nullptr && held.request.attempt > session->attempt;
  std::optional<EngineView> last_choice;
  for (const InstanceId engine : prefill_.targets()) {
    const auto found = engines_.find(engine);
    if (found == engines_.end() || (!home.is_none() && engine != home)) continue;
    EngineRecord& record = found->second;
    if (engine == home && !has_version(record, held))
      record.behind.try_emplace(key_of(held), VersionWait{services().now()});
    if (!can_take(engine, record, held)) continue;
    if (!is_allowed(record) && has_sound_engine(held)) continue;
    const EngineView view{engine, record.num_sent - record.num_finished, record.num_free_blocks,
                          record.num_blocks};
    const bool is_there = session != nullptr && session->engine == engine &&
                          session->incarnation == record.incarnation;
    if (is_there && is_again) {
      last_choice = view;
      continue;
    }
    if (is_there) question.sticky = static_cast<int32_t>(views.size());
    views.push_back(view);
  }
  if (views.empty() && last_choice) views.push_back(*last_choice);
  if (views.empty()) return false;
  const auto block_names = block_names_of(held);
  if (namer_)
    for (const EngineView& view : views) {
      const size_t num_known = engines_.at(view.engine).prefixes.num_known(block_names);
      question.num_known_tokens.push_back(static_cast<int32_t>(num_known) * kRouteBlockTokens);
    }
  if (namer_ && question.sticky >= 0 && held.request.known.num_tokens > 0)
    question.num_known_tokens[static_cast<size_t>(question.sticky)] = held.request.known.num_tokens;
  const InstanceId engine = views[checked(policy_->choose(question, views), views.size())].engine;
  EngineRecord& record = engines_[engine];
  ++record.num_sent;
  if (record.breaker.half_opens_at()) in_use_is_stale_ = true;  // it may have had its one request
  record.prefixes.add(block_names, static_cast<size_t>(options_.prefix_blocks_max));
  remember(held, engine);
  prefill_.send(held.request,
                to(engine).for_tenant(held.tenant).answering(held.cause).to_origin_of(held.origin));
  return true;
}

void Router::remember(const HeldRequest& held, InstanceId engine) {
  EngineRecord& record = engines_[engine];
  sessions_.put(held.session(), {engine, record.incarnation, held.request.attempt},
                static_cast<size_t>(options_.sessions_max));
  requests_[held.name()] = {engine, held.request.session, held.request.attempt, held.cause,
                            held.origin};
  // The sender never reports answers: keep the table bounded.
  if (requests_.size() > owed_max_) requests_.erase(requests_.begin());
}

Status Router::on_load(const EngineLoad& load) {
  const auto targets = prefill_.targets();
  // The load of a decode instance has nothing that its prefill instance's load lacks.
  if (std::find(targets.begin(), targets.end(), load.engine) == targets.end()) return ok();
  const auto [found, is_new] = engines_.try_emplace(load.engine);
  EngineRecord& record = found->second;
  record.num_finished = std::min(std::max(record.num_finished, load.num_finished), record.num_sent);
  record.num_received = std::min(std::max(record.num_received, load.num_received), record.num_sent);
  record.num_room = load.num_room;
  record.num_free_blocks = load.num_free_blocks;
  record.num_blocks = load.num_blocks;
  in_use_is_stale_ = in_use_is_stale_ || is_new || record.is_down;
  log_breaker_change(record.breaker.take(load.num_completed, load.num_failed, services().now()),
                     load);
  record.is_down = false;
  const bool has_dropped = take_versions(record, load);
  const bool may_refuse = has_dropped && answer_refused(kCancelRequestsMax);
  arm(release_held() || may_refuse);
  return ok();
}

void Router::log_breaker_change(CircuitBreaker::Change change, const EngineLoad& load) {
  if (change == CircuitBreaker::Change::kNone) return;
  in_use_is_stale_ = true;
  const bool has_opened = change == CircuitBreaker::Change::kOpened;
  services().count(has_opened ? "breakers_opened" : "breakers_closed", 1);
  services().log(
      LogLevel::kWarning,
      has_opened
          ? fmt::format("the engine of instance {} has failed {} requests, the last ones in a row: "
                        "it gets no new requests for {} while other engines can serve",
                        load.engine, load.num_failed, to_string(CircuitBreaker::kOpenFor))
          : fmt::format("the engine of instance {} has answered {} requests in a row: it gets new "
                        "requests again",
                        load.engine, CircuitBreaker::kGoodEndsToClose));
}

void Router::refresh_in_use() {
  const Time now = services().now();
  for (auto& [engine, record] : engines_) {
    if (record.breaker.half_opens_at())
      in_use_is_stale_ = true;  // the breaker may have half-opened
                                // since
    for (auto& [key, behind] : record.behind)
      if (!behind.is_too_long && now - behind.since >= kLeftBehindAfter)
        behind.is_too_long = in_use_is_stale_ = true;
  }
  if (!std::exchange(in_use_is_stale_, false)) return;
  auto in_use = engines_in_use();
  if (in_use == in_use_) return;
  in_use_ = std::move(in_use);
  held_.assign([this](const HeldRequest& held) { return lane_of(held); });
}

bool Router::release_held() {
  refresh_in_use();
  const bool has_more =
      held_.offer(kReleasedPerHandler, [this](const HeldRequest& held) { return route(held); });
  if (is_paused_ && held_.size() < held_max_) {
    is_paused_ = false;
    services().resume("generate");
  }
  return has_more || (in_use_is_stale_ && !held_.is_empty());
}

/// Sets the timer for the next release. At once if more can go; soon if refusals wait for free
/// space; when an engine will have been behind for too long; or when a breaker half-opens.
void Router::arm(bool has_more) {
  std::optional<Duration> delay;
  if (has_more)
    delay = Duration();
  else if (!refusals_.empty())
    delay = kLookForSpaceEvery;
  const auto wake_at = [&](Time at) {
    const Duration left = at - services().now();
    if (!delay || left < *delay) delay = std::max(left, Duration());
  };
  for (const auto& [engine, record] : engines_) {
    if (held_.is_empty()) break;
    if (record.breaker.state(services().now()) == CircuitBreaker::State::kOpen)
      wake_at(*record.breaker.half_opens_at());
    for (const auto& [key, behind] : record.behind)
      if (!behind.is_too_long) wake_at(behind.since + kLeftBehindAfter);
  }
  if (delay) services().set_timer("release", *delay);
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
      services().count("requests_refused", 1);
      refused_.send(completion_of(refusal.held.request, refusal.end, refusal.detail),
                    for_tenant(refusal.held.tenant)
                        .answering(refusal.held.cause)
                        .to_origin_of(refusal.held.origin));
      waiting.pop_front();
      --most;
    }
    asker = waiting.empty() ? refusals_.erase(asker) : std::next(asker);
  }
  return most == 0 && !refusals_.empty();
}

void Router::refuse_later(HeldRequest held, FinishReason end, std::string detail) {
  const InstanceId origin = held.origin;
  held.request.prompt_tokens.clear();
  refusals_[origin].push_back({std::move(held), end, std::move(detail)});
}

void Router::refuse(HeldRequest held, FinishReason end, std::string detail) {
  refuse_later(std::move(held), end, std::move(detail));
  arm(answer_refused(1));
}

Status Router::on_cancel(const Cancel& cancel) {
  const auto& delivery = services().delivery();
  if (cancel.requests.size() > kCancelRequestsMax)
    return error(Code::kInvalid, "a cancel names {} requests, at most {} are allowed",
                 cancel.requests.size(), kCancelRequestsMax);
  for (const uint64_t request : cancel.requests) {
    const RequestName name{delivery.tenant, request};
    if (auto held = held_.take(name)) {
      refuse(*std::move(held), FinishReason::kCancelled, "cancelled while it waited for an engine");
    } else if (const auto owed = requests_.find(name); owed != requests_.end()) {
      send_abort(name, owed->second);
    } else {
      cancelled_.add(name);
    }
  }
  if (is_paused_) services().set_timer("release", Duration());
  return ok();
}

void Router::send_abort(RequestName name, const Owed& owed) {
  const Abort abort{.request = name.request, .attempt = owed.attempt};
  const auto options = SendOptions().for_tenant(name.tenant).to_origin_of(owed.origin);
  const auto engines = prefill_.targets();
  for (const InstanceId holder : abort_.targets()) {
    const bool is_prefill = std::find(engines.begin(), engines.end(), holder) != engines.end();
    const bool has_request =
        is_prefill ? holder == owed.engine : services().share_resource(holder, owed.engine);
    if (!has_request) continue;
    auto addressed_options = options;
    addressed_options.target = holder;
    abort_.send(abort, addressed_options);
  }
}

Status Router::on_peer(const PeerEvent& event) {
  const bool is_down = event.kind == PeerEvent::Kind::kDown;
  const auto found = engines_.find(event.instance);
  if (found == engines_.end()) return ok();
  // A request that was answered after the sender's last report is answered twice. The sender
  // ignores the second answer.
  for (auto owed = requests_.begin(); owed != requests_.end();) {
    if (owed->second.engine != event.instance) {
      ++owed;
      continue;
    }
    HeldRequest held;
    held.request.request = owed->first.request;
    held.request.session = owed->second.session;
    held.request.attempt = owed->second.attempt;
    held.tenant = owed->first.tenant;
    held.cause = owed->second.cause;
    held.origin = owed->second.origin;
    owed = requests_.erase(owed);
    refuse_later(std::move(held), FinishReason::kEngineLost,
                 "the engine that had the request is gone");
  }
  const uint64_t incarnation = found->second.incarnation + 1;
  found->second = EngineRecord();
  in_use_is_stale_ = true;
  found->second.incarnation = incarnation;
  found->second.is_down = is_down;
  const bool may_refuse = answer_refused(kCancelRequestsMax);
  arm(release_held() || may_refuse);
  return ok();
}

}  // namespace primerl
