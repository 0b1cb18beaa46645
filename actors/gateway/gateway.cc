#include "actors/gateway/gateway.h"

#include <algorithm>
#include <utility>

#include "actors/common/request_name.h"
#include "actors/common/tenant_key.h"
#include "graph/tenancies.h"
#include "kernels/engine/stop_rule.h"

namespace primerl {
namespace {

// Rollout numbers its requests from 0, so the upper half of the numbers is free.
constexpr uint64_t kFirstRequest = uint64_t{1} << (kRequestBits - 1);
constexpr int64_t kSentPerWorkCall = 64;
constexpr int64_t kCancelsPerWorkCall = 16;

Amount num_tenants() {
  return {[](const void*, std::span<const Tenant> tenants) { return std::ssize(tenants); },
          "number of tenants"};
}

}  // namespace

Contract Gateway::contract() {
  using O = GatewayOptions;
  return ContractOf<Gateway, O>("gateway", "answers HTTP clients with the tenants' policies")
      .uses<Outside>("listener", &O::listener, "the resource of kind \"outside\" that listens")
      .uses<Tokenizer>("tokenizer", &O::model, "the model whose tokenizer it uses")
      .option("max_inflight", &O::max_inflight, count_from(1) | unit("requests"),
              "requests at once, of all tenants; of one tenant at most its 'inflight'")
      .option("max_waiting", &O::max_waiting, count_from(1) | unit("requests"),
              "requests of one tenant that wait to be sent; a further one gets the status 429")
      .option("attempts_max", &O::attempts_max, count_from(0),
              "engine losses or failures that one request survives")
      .option("request_timeout", &O::request_timeout, above(0),
              "how long a client waits for its reply; then it gets the status 504")
      .in("completion", &Gateway::on_completion, "the one answer to a request",
          at_most(&O::max_inflight, "max_inflight"))
      .in("policy", &Gateway::on_policy,
          "a version that every engine has; without it only requests of runs are answered",
          latest_wins(), optional_port())
      .in("closed", &Gateway::on_member_closed, "runs that have ended", serves_runs())
      .timer("deadline", &Gateway::on_deadline, "a client has waited for request_timeout")
      .out("generate", &Gateway::generate_, "a prompt to continue", burst(0),
           work_burst(kSentPerWorkCall))
      .out("cancel", &Gateway::cancel_, "requests whose clients have gone", burst(0),
           work_burst(kCancelsPerWorkCall), at_most(&O::max_inflight, "max_inflight"))
      .out("turn", &Gateway::turn_, "a completed request of a run, or that no more follow",
           serves_runs(), burst(kCancelRequestsMax))
      .out("address", &Gateway::address_, "where servers of environments reach it", serves_runs(),
           burst(0), work_burst(num_tenants()))
      .works()
      .single()
      .state([](auto& f) {
        using G = Gateway;
        f("tenants", &G::tenants_)("generations", &G::generations_)("requests", &G::requests_)(
            "clients", &G::clients_)("joinable", &G::joinable_)("deadlines", &G::deadlines_)(
            "armed", &G::armed_)("asked", &G::asked_)("num_accepts", &G::num_accepts_)(
            "num_closed", &G::num_closed_)("is_address_asked", &G::is_address_asked_)(
            "base_url", &G::base_url_)("next_generation", &G::next_generation_)(
            "next_request", &G::next_request_)("warned", &G::warned_)("routers", &G::routers_)(
            "is_draining", &G::is_draining_);
      });
}

Status Gateway::start(Resources& resources) {
  listener_ = &resources.get<Outside>("listener");
  tokenizer_ = &resources.get<Tokenizer>("tokenizer");
  next_request_ = kFirstRequest;
  for (const TenantSlot slot : services().tenants()) begin_tenant(slot);
  return ok();
}

void Gateway::begin_tenant(TenantSlot slot) {
  tenants_[slot];
  const Tenant& tenant = services().tenant(slot);
  if (!tenant.mix.empty())
    mixes_.emplace(slot,
                   TaskMix(weights_of(tenant), services().random(slot, kTaskMixSeed, 0).next()));
}

Status Gateway::on_tenant(TenantSlot slot, TenantChange::Kind kind) {
  if (kind == TenantChange::Kind::kJoin) begin_tenant(slot);
  if (kind == TenantChange::Kind::kPause)
    paused_.insert(slot);
  else
    paused_.erase(slot);
  if (kind == TenantChange::Kind::kLeave) drop_tenant(slot);
  return ok();
}

void Gateway::drop_tenant(TenantSlot slot) {
  std::vector<uint64_t> open;
  for (const auto& [number, generation] : generations_)
    if (generation.tenant == slot && generation.first == 0) open.push_back(number);
  for (const uint64_t number : open)
    fail(number, error(Code::kNotFound, "the model '{}' does not exist any more",
                       services().tenant(slot).name));
  tenants_.erase(slot);
  mixes_.erase(slot);
  std::erase_if(requests_, [slot](const auto& each) { return each.first.first == slot; });
  std::erase_if(formats_, [slot](const auto& each) { return each.first.first == slot; });
}

Result<bool> Gateway::work() {
  num_asked_ = 0;
  if (!is_draining_) {
    RETURN_IF_ERROR(receive_answers());
    RETURN_IF_ERROR(keep_calls_open());
    send_waiting();
  }
  send_cancels();
  arm_deadline();
  return std::ranges::any_of(tenants_,
                             [](const auto& each) { return !each.second.to_cancel.empty(); }) ||
         (may_send() && !next_tenant().is_none());
}

Status Gateway::drain() {
  is_draining_ = true;
  listener_->stop();  // it refuses what has no reply
  std::vector<uint64_t> open;
  for (const auto& [number, generation] : generations_)
    if (generation.first == 0) open.push_back(number);
  for (const uint64_t number : open) abandon(number);
  asked_.clear();
  return ok();
}

bool Gateway::idle() const {
  return std::ranges::all_of(tenants_, [](const auto& each) {
    return each.second.num_inflight == 0 && each.second.to_cancel.empty();
  });
}

void Gateway::add(Generation generation, const ClientRequest& client, uint64_t request) {
  const uint64_t number = next_generation_++;
  TenantState& tenant = tenants_[generation.tenant];
  if (generation.request.session == 0)
    generation.request.session = stable_hash("a request without a session", number) | 1;
  tenant.waiting.push_back(number);
  for (uint64_t& other : generation.others) {
    Generation sample;
    sample.tenant = generation.tenant;
    sample.request = generation.request;
    sample.first = number;
    other = next_generation_++;
    sample.request.seed += other - number;
    generations_.emplace(other, std::move(sample));
    tenant.waiting.push_back(other);
  }
  generation.deadline = services().now() + options_.request_timeout;
  generation.clients.push_back({request, client.request_id});
  deadlines_.emplace(generation.deadline, number);
  if (!generation.join_key.empty()) joinable_[generation.join_key] = number;
  clients_[request] = number;
  generations_.emplace(number, std::move(generation));
}

/// The tenant with the fewest requests in flight for its share; none if all wait for a completion.
TenantSlot Gateway::next_tenant() const {
  return least_loaded(services(), tenants_, options_.max_inflight,
                      [this](TenantSlot slot, const TenantState& tenant) {
                        return next_of(slot, tenant) != tenant.waiting.end();
                      });
}

std::deque<uint64_t>::const_iterator Gateway::next_of(TenantSlot slot,
                                                      const TenantState& tenant) const {
  if (!tenant.live.is_none() && !paused_.contains(slot) && budget_wait(slot, tenant) == Duration())
    return tenant.waiting.begin();
  // Only a run knows its version. It does not wait for requests that wait for a version, and its
  // tokens are those of its rollout.
  return std::ranges::find_if(
      tenant.waiting, [this](uint64_t number) { return generations_.at(number).run.has_value(); });
}

Duration Gateway::budget_wait(TenantSlot slot, const TenantState& tenant) const {
  return tenant.budget.wait(services().tenant(slot).tokens_per_second, services().now());
}

bool Gateway::may_send() const { return !is_draining_ && generate_.room() > 0; }

void Gateway::send_waiting() {
  for (int64_t i = 0; i < kSentPerWorkCall && may_send(); ++i) {
    const TenantSlot slot = next_tenant();
    if (slot.is_none()) return;
    TenantState& tenant = tenants_[slot];
    const auto next = next_of(slot, tenant);
    const uint64_t number = *next;
    tenant.waiting.erase(next);
    send(number);
  }
}

void Gateway::send(uint64_t number) {
  Generation& generation = generations_.at(number);
  TenantState& tenant = tenants_[generation.tenant];
  GenerateRequest& request = generation.request;
  request.request = next_request_++;
  request.version = generation.run ? generation.run->version : tenant.live;
  request.answered = std::exchange(tenant.answered, {});
  request.time_left = std::max(generation.deadline - services().now(), Duration());
  generation.is_sent = true;
  ++tenant.num_inflight;
  requests_[{generation.tenant, request.request}] = number;
  for (const InstanceId router : generate_.targets(generation.tenant)) routers_.insert(router);
  GenerateRequest message = request;
  if (message.salt.empty())
    message.salt =
        fmt::format("{}:{}", tenancy_name(services().tenant(generation.tenant)), tenant.live);
  request.answered.clear();
  generate_.send(std::move(message), send_options(generation.tenant));
}

void Gateway::send_cancels() {
  send_cancels_of(tenants_, kCancelsPerWorkCall, [this](TenantSlot slot, Cancel cancel) {
    cancel_.send(std::move(cancel), send_options(slot));
  });
}

Status Gateway::on_completion(const Completion& completion) {
  num_asked_ = 0;
  const TenantSlot slot = services().delivery().tenant;
  TenantState& tenant = tenants_[slot];
  tenant.answered.push_back(completion.request);
  const auto charge = [&](int64_t num_prompt) {
    tenant.budget.charge(num_prompt + std::ssize(completion.tokens),
                         services().tenant(slot).tokens_per_second, services().now());
  };
  if (tenant.end_cancelled(completion.request)) {
    charge(0);  // its prompt is not known any more
    return ok();
  }
  const auto found = requests_.find({slot, completion.request});
  if (found == requests_.end()) {
    services().count("completions_unknown", 1);
    return ok();
  }
  const uint64_t number = found->second;
  requests_.erase(found);
  --tenant.num_inflight;
  Generation& generation = generations_.at(number);
  generation.is_sent = false;
  if (!generation.run) {
    // Cached tokens of the prompt were not computed.
    const int64_t num_prompt = std::ssize(generation.request.prompt_tokens);
    charge(std::max<int64_t>(num_prompt - completion.num_cached_tokens, 0));
  }
  switch (completion.end) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      complete(number, completion);
      break;
    case FinishReason::kEngineLost:
    case FinishReason::kFailed:
    case FinishReason::kUnknownSession:
      try_again(number, completion.detail);
      break;
    case FinishReason::kRefused:
      fail(number, error(Code::kInvalid, "the engine refused the request: {}", completion.detail));
      break;
    case FinishReason::kCancelled:
      fail(number, error(Code::kUnavailable, "the request was cancelled: {}", completion.detail));
      break;
  }
  return ok();
}

Status Gateway::on_policy(const PolicyLive& live) {
  const TenantSlot tenant = services().delivery().tenant;
  const PolicyVersion version = version_in(live, services(), tenant);
  if (!version.is_none()) tenants_[tenant].live = version;
  return ok();
}

void Gateway::wait_again(uint64_t number) {
  Generation& generation = generations_.at(number);
  generation.is_sent = false;
  ++generation.request.attempt;
  tenants_[generation.tenant].waiting.push_front(number);
}

void Gateway::try_again(uint64_t number, const std::string& reason) {
  const Generation& generation = generations_.at(number);
  const int64_t num_lost = int64_t{generation.request.attempt} + 1;
  if (num_lost > options_.attempts_max)
    return fail(number, error(Code::kInternal, "its engine was lost or failed {} times: {}",
                              num_lost, reason));
  services().count("requests_reissued", 1);
  wait_again(number);
}

void Gateway::complete(uint64_t number, const Completion& completion) {
  const Generation& ended = generations_.at(number);
  const uint64_t first = ended.first == 0 ? number : ended.first;
  Generation& generation = generations_.at(first);
  std::vector<Completion> all;
  std::span<const Completion> completions(&completion, 1);
  if (!generation.others.empty()) {
    generation.finished.emplace(number, completion).first->second.kept = {};
    if (number != first) generations_.erase(number);
    if (generation.finished.size() <= generation.others.size()) return;
    for (auto& [sample, finished] : generation.finished) all.push_back(std::move(finished));
    completions = all;
  }
  auto body = body_of(generation, first, completions);
  if (!body.ok()) return fail(first, body.error());
  services().count("requests_completed", 1);
  // Before the client continues.
  send_turn(generation, completion);
  end(first, 200, *body);
}

Result<std::string> Gateway::body_of(const Generation& generation, uint64_t number,
                                     std::span<const Completion> completions) {
  const ChatForm& form = generation.chat;
  ReplyFacts facts;
  facts.model = services().tenant(generation.tenant).name;
  const std::string& client_id = generation.clients.front().request_id;
  const std::string_view prefix = form.is_chat ? "chatcmpl" : "generate";
  facts.id = client_id.empty() ? fmt::format("{}-{}", prefix, number) : client_id;
  facts.created = form.created;
  facts.prompt = generation.request.prompt_tokens;
  facts.sampling = generation.request.sampling;
  facts.has_token_ids = form.has_token_ids;
  facts.has_compact_logprobs = form.has_compact_logprobs;
  facts.has_logprobs = form.has_logprobs;
  if (!form.is_chat) return generate_reply(facts, completions, tokenizer_->vocab_size());
  ASSIGN_OR_RETURN(const chat::ChatFormat* format,
                   format_of(generation.tenant, form.template_kwargs));
  std::vector<chat::ParsedAnswer> answers;
  for (const Completion& completion : completions)
    answers.push_back(answer_of(generation, *format, completion));
  return chat_reply(facts, completions, answers, *tokenizer_);
}

chat::ParsedAnswer Gateway::answer_of(const Generation& generation, const chat::ChatFormat& format,
                                      const Completion& completion) const {
  chat::ParsedAnswer answer = format.parse(completion.tokens);
  // Ids cannot show where a stop text begins inside a token.
  if (completion.end == FinishReason::kStop && !generation.request.sampling.stop.empty()) {
    std::string content = primerl::text_of(answer.message);
    size_t end = content.size();
    for (const std::string& stop : generation.request.sampling.stop)
      end = std::min(end, content.find(stop));
    content.resize(end);
    answer.message.content = {{"text", std::move(content)}};
  }
  return answer;
}

void Gateway::end(uint64_t number, int32_t status, const std::string& body) {
  const Generation ended = std::move(generations_.at(number));
  generations_.erase(number);
  end_turn(ended);
  deadlines_.erase({ended.deadline, number});
  if (!ended.join_key.empty()) joinable_.erase(ended.join_key);
  for (const Client& client : ended.clients) {
    clients_.erase(client.request);
    reply(client.request, status, body, client.request_id);
  }
}

/// If one of n generations fails, the request has failed.
void Gateway::fail(uint64_t number, const Error& error) {
  services().count("requests_failed", 1);
  Generation& failed = generations_.at(number);
  const uint64_t first = failed.first == 0 ? number : failed.first;
  if (number != first) stop(generations_.at(first), first);
  stop_others(first);
  const int32_t status = status_of(error);
  end(first, status, http_error_body(status, error.text()));
}

void Gateway::stop(Generation& generation, uint64_t number) {
  TenantState& tenant = tenants_[generation.tenant];
  if (generation.is_sent) {
    const uint64_t request = generation.request.request;
    requests_.erase({generation.tenant, request});
    tenant.cancel(request);
    services().count("requests_cancelled", 1);
  } else {
    std::erase(tenant.waiting, number);
  }
  generation.is_sent = false;
}

void Gateway::stop_others(uint64_t number) {
  for (const uint64_t other : generations_.at(number).others) {
    const auto found = generations_.find(other);
    if (found == generations_.end()) continue;  // it has ended
    stop(found->second, other);
    generations_.erase(found);
  }
}

void Gateway::abandon(uint64_t number) {
  stop_others(number);
  Generation& generation = generations_.at(number);
  stop(generation, number);
  end_turn(generation);
  for (const Client& client : generation.clients) clients_.erase(client.request);
  deadlines_.erase({generation.deadline, number});
  if (!generation.join_key.empty()) joinable_.erase(generation.join_key);
  generations_.erase(number);
}

void Gateway::arm_deadline() {
  if (deadlines_.empty()) return;
  Time first = deadlines_.begin()->first;
  for (const auto& [slot, tenant] : tenants_)
    if (const Duration wait = budget_wait(slot, tenant);
        !tenant.waiting.empty() && wait > Duration())
      first = std::min(first, services().now() + wait);
  if (armed_ && *armed_ <= first) return;
  armed_ = first;
  services().set_timer("deadline", std::max(first - services().now(), Duration()));
}

Status Gateway::on_deadline() {
  num_asked_ = 0;
  armed_.reset();
  while (!deadlines_.empty() && deadlines_.begin()->first <= services().now()) {
    const uint64_t number = deadlines_.begin()->second;
    const std::vector<Client> clients = generations_.at(number).clients;
    abandon(number);
    const std::string body = http_error_body(
        504, fmt::format("no reply within {}", to_string(options_.request_timeout)));
    for (const Client& client : clients) reply(client.request, 504, body, client.request_id);
  }
  arm_deadline();
  return ok();
}

Status Gateway::on_peer(const PeerEvent& event) {
  num_asked_ = 0;
  if (event.kind != PeerEvent::Kind::kDown || !routers_.contains(event.instance)) return ok();
  for (auto& [slot, tenant] : tenants_) tenant.forget_router();
  std::vector<uint64_t> lost;
  for (const auto& [request, number] : requests_) lost.push_back(number);
  requests_.clear();
  std::ranges::sort(lost, std::greater());  // the oldest is first again
  for (const uint64_t number : lost) generations_.at(number).is_sent = false;
  for (const uint64_t number : lost)
    if (generations_.contains(number)) try_again(number, "the router is gone");
  return ok();
}

}  // namespace primerl
