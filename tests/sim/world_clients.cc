#include "tests/sim/world_clients.h"

#include <utility>
#include <vector>

#include "graph/base/assert.h"
#include "graph/base/json.h"
#include "graph/http_calls.h"

namespace primerl::sim {
namespace {

bool one_in(RandomStream& random, uint64_t count) { return random.below(count) == 0; }

/// The tenants' names, one that no tenant has, and none.
std::string model_of(uint64_t draw) {
  constexpr std::string_view kModels[] = {"ada", "ada", "ada", "bo", "bo", "", "unknown"};
  return std::string(kModels[draw % std::size(kModels)]);
}

Json sampling_of(uint64_t draw) {
  Json sampling = Json::object();
  sampling.set("max_tokens", static_cast<int64_t>(1 + draw % 9));
  if (draw % 3 == 0) sampling.set("temperature", 0.5);
  if (draw % 5 == 0) sampling.set("cache_salt", fmt::format("salt {}", draw % 2));
  if (draw % 4 == 0) sampling.set(fmt::format("no_such_key_{}", draw % 3), 1);
  return sampling;
}

ClientRequest completion_request(uint64_t draw) {
  ClientRequest request;
  request.path = "/inference/v1/generate";
  Json sampling = sampling_of(draw);
  Json body = Json::object();
  if (const Json* salt = sampling.find("cache_salt"); salt != nullptr) {
    body.set("cache_salt", *salt);
    sampling.set("cache_salt", Json());
  }
  body.set("token_ids", Json::list(std::vector<int64_t>{3, 4, static_cast<int64_t>(5 + draw % 7)}))
      .set("model", model_of(draw / 7))
      .set("sampling_params", std::move(sampling));
  request.body = body.dump();
  return request;
}

ClientRequest chat_request(uint64_t draw) {
  ClientRequest request;
  request.path = "/v1/chat/completions";
  Json body = sampling_of(draw);
  Json messages = Json::array();
  messages.push_back(
      Json::object().set("role", "user").set("content", fmt::format("ab{}", draw % 4)));
  body.set("messages", std::move(messages)).set("model", model_of(draw / 7));
  if (draw % 2 == 0) body.set("logprobs", true);
  if (draw % 3 == 0) body.set("return_token_ids", true);
  if (draw % 3 == 1)
    body.set("chat_template_kwargs", Json::object().set("thinks", static_cast<int64_t>(draw % 2)));
  if (draw % 5 == 1) body.set("stop", "e");
  request.body = body.dump();
  return request;
}

ClientRequest page_request(uint64_t draw) {
  constexpr std::string_view kPages[] = {"/v1/models", "/health", "/no/such/page", "/tokenize"};
  ClientRequest request;
  request.path = kPages[draw % std::size(kPages)];
  request.method = request.path == "/tokenize" ? "POST" : "GET";
  if (request.method == "POST") request.body = R"({"prompt":"ab","model":"ada"})";
  return request;
}

class WorldClients final : public WorldListener {
 public:
  explicit WorldClients(const WorldSpec& spec)
      : WorldListener(spec.number, 501, {spec.num_client_requests, spec.client_look_us, 5}),
        spec_(spec) {}

 private:
  ClientRequest next_request(uint64_t number, uint64_t) override {
    const uint64_t draw = random_.next() >> 8;
    ClientRequest request = draw % 8 == 0                     ? page_request(draw / 8)
                            : spec_.has_chat && draw % 2 == 0 ? chat_request(draw / 8)
                                                              : completion_request(draw / 8);
    if (request.method.empty()) request.method = "POST";
    if (random_.below(4) != 0) request.session = fmt::format("session {}", random_.below(9));
    if (random_.below(2) == 0) request.request_id = fmt::format("client {}", number);
    if (request.session.empty() || random_.below(3) != 0)
      last_ = request;
    else
      request = std::exchange(last_, request);  // a repeat of the request before it
    return request;
  }

  const WorldSpec spec_;
  ClientRequest last_ = completion_request(1);
};

class SeenOutside final : public Outside {
 public:
  SeenOutside(std::shared_ptr<Outside> outside, std::function<void(std::string_view)> seen)
      : outside_(std::move(outside)), seen_(std::move(seen)) {}

  Status ask(OutsideCall call) override {
    seen_(fmt::format("{} {} {}", call.id, call.attempt, call.body));
    return outside_->ask(std::move(call));
  }
  void forget(uint32_t pool, uint64_t session) override {
    seen_("forget");
    outside_->forget(pool, session);
  }
  std::vector<OutsideAnswer> receive_answers() override { return outside_->receive_answers(); }
  void stop() override { outside_->stop(); }
  void set_wake(std::function<void()> wake) override { outside_->set_wake(std::move(wake)); }
  bool has_work() const override { return outside_->has_work(); }
  Duration take_cost() override { return outside_->take_cost(); }
  Blob save_state() const override { return outside_->save_state(); }
  Status restore_state(const Blob& state) override { return outside_->restore_state(state); }

 private:
  const std::shared_ptr<Outside> outside_;
  const std::function<void(std::string_view)> seen_;
};

}  // namespace

Status WorldListener::ask(OutsideCall call) {
  if (is_stopped_) return ok();
  ASSIGN_OR_RETURN(const HttpCall read, read_http_call(call.body));
  if (read.kind == HttpCall::Kind::kAccept) accepts_.push_back(call.id);
  if (read.kind == HttpCall::Kind::kClosed) closed_calls_.push_back(call.id);
  if (read.kind != HttpCall::Kind::kReply) return ok();
  const bool is_sent = open_.erase(read.reply.request) > 0;
  if (is_sent) on_reply(read.reply);
  answers_.push_back({call.id, OutsideEnd::kDone, write_sent(is_sent)});
  return ok();
}

std::vector<OutsideAnswer> WorldListener::receive_answers() {
  if (is_stopped_) return {};
  const uint64_t look = ++num_looks_;
  cost_ += Duration::microseconds(static_cast<int64_t>(mix(world_, look) % limits_.look_us));
  while (!accepts_.empty() && may_send() && look >= next_at_) send_next(look);
  report_gone(look);
  std::vector<OutsideAnswer> received;
  for (; !answers_.empty() && received.size() < kOutsideAnswersMax; answers_.pop_front())
    received.push_back(std::move(answers_.front()));
  return received;
}

void WorldListener::stop() {
  is_stopped_ = true;
  answers_.clear();
}

bool WorldListener::has_work() const {
  return !is_stopped_ && (!answers_.empty() || (may_send() && !accepts_.empty()) ||
                          (!leaving_.empty() && !closed_calls_.empty()));
}

void WorldListener::send_next(uint64_t look) {
  const uint64_t number = num_sent_++;
  const uint64_t accept = accepts_.front();
  const ClientRequest request = next_request(number, accept);
  accepts_.pop_front();
  answers_.push_back({accept, OutsideEnd::kDone, write_client_request(request)});
  open_[accept] = true;
  if (random_.below(limits_.leaves_every) == 0) leaving_.emplace(look + random_.below(40), accept);
  next_at_ = look + (random_.below(6) == 0 ? random_.below(60) : random_.below(4));
}

void WorldListener::report_gone(uint64_t look) {
  if (closed_calls_.empty()) return;
  std::vector<uint64_t> gone;
  while (!leaving_.empty() && leaving_.begin()->first <= look) {
    if (open_.erase(leaving_.begin()->second) > 0) gone.push_back(leaving_.begin()->second);
    leaving_.erase(leaving_.begin());
  }
  if (gone.empty()) return;
  answers_.push_back({closed_calls_.front(), OutsideEnd::kDone, write_closed(gone)});
  closed_calls_.pop_front();
}

void add_clients(WorldSpec& spec) {
  if (spec.number < kClientWorlds || spec.number >= kTeacherWorlds) return;
  RandomStream random(mix(spec.number, stable_hash("clients")));
  // Nodes of a judge are implied only in a graph without edges: that of one tenant.
  if (one_in(random, 2) && spec.kind != WorldKind::kTwoTenants)
    spec.num_judges = 1 + random.below(3);
  else
    spec.num_client_requests = 20 + random.below(60);
  spec.client_look_us = 1 + random.below(400);
}

std::string judge_entries(const WorldSpec& spec, RandomStream& random) {
  std::string entries;
  for (uint64_t i = 0; i < spec.num_judges; ++i)
    entries += fmt::format(
        "{{ name = \"judge\", rubric = \"r\", prompt = \"{{answer}}\", best = 1e6, unparsed = "
        "\"{}\", timeout = \"{}\", weight = {} }}, ",
        one_in(random, 2) ? "zero" : "fail", one_in(random, 2) ? "5ms" : "60s",
        1 + random.below(3));
  return entries;
}

std::string driver_nodes(const WorldSpec& spec) {
  std::string nodes;
  if (spec.num_client_requests > 0) nodes += ", \"gateway\"";
  if (spec.num_judges > 0) nodes += ", \"judge\"";
  if (spec.has_teacher) nodes += ", \"teacher\"";
  if (spec.num_tinker_requests > 0) nodes += ", \"tinker\"";
  return nodes;
}

std::string with_gateway(const WorldSpec& spec, std::string graph) {
  if (spec.num_client_requests == 0) return graph;
  const auto insert = [&graph](std::string_view mark, std::string_view added) {
    const size_t at = graph.find(mark);
    CHECK(at != std::string::npos, "the graph of the example has changed");
    graph.insert(at + mark.size(), added);
  };
  insert("actor = \"broadcaster\"\n",
         "[resource.front]\nkind = \"outside\"\nbackend = \"http\"\n[node.gateway]\n"
         "actor = \"gateway\"\n");
  insert("forward = [\n", "  \"gateway.generate -> router.generate\",\n");
  insert("feedback = [\n",
         "  \"gateway.cancel -> router.cancel\",\n"
         "  \"decode.completion -> gateway.completion\",\n"
         "  \"prefill.refused -> gateway.completion\",\n"
         "  \"router.refused -> gateway.completion\",\n"
         "  \"broadcaster.live -> gateway.policy\",\n");
  return graph;
}

std::vector<std::string> client_sets(const WorldSpec& spec) {
  std::vector<std::string> sets;
  RandomStream random(mix(spec.number, stable_hash("options of clients")));
  if (spec.num_client_requests > 0) {
    sets.push_back(fmt::format("node.gateway.max_inflight={}", 1 + random.below(8)));
    sets.push_back(
        fmt::format("node.gateway.max_waiting={}", one_in(random, 2) ? 1 + random.below(4) : 1000));
    sets.push_back(fmt::format("node.gateway.attempts_max={}", random.below(4)));
    sets.push_back(
        fmt::format("node.gateway.request_timeout=\"{}\"", one_in(random, 2) ? "8ms" : "600s"));
  }
  if (spec.num_judges > 0) {
    sets.push_back("resource.judge.backend=\"scripted\"");
    sets.push_back(fmt::format("resource.judge.max_running={}", 1 + random.below(8)));
    sets.push_back(fmt::format("resource.judge.refuse_every={}", one_in(random, 3) ? 9 : 0));
    sets.push_back(fmt::format("node.judge.attempts_max={}", random.below(3)));
  }
  return sets;
}

std::shared_ptr<Outside> make_world_clients(const WorldSpec& spec) {
  return std::make_shared<WorldClients>(spec);
}

std::shared_ptr<Outside> make_seen_outside(std::shared_ptr<Outside> outside,
                                           std::function<void(std::string_view)> seen) {
  return std::make_shared<SeenOutside>(std::move(outside), std::move(seen));
}

}  // namespace primerl::sim
