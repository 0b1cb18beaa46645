#include "tests/sim/world_tinker.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "graph/base/json.h"
#include "graph/base/random.h"
#include "tests/actors/tinker_pass.h"
#include "tests/sim/world_clients.h"

namespace primerl::sim {
namespace {

bool is_one_of(RandomStream& random, uint64_t count) { return random.below(count) == 0; }

enum class TinkerAsk : uint8_t { kOther, kSession, kModelRequest, kFuture, kRetrieve };
/// The purpose of a call of the client.
struct AskedOfTinker {
  TinkerAsk kind = TinkerAsk::kOther;
  std::string future;     // of kRetrieve
  ClientRequest request;  // of kModelRequest: sent again after 429
};

class WorldTinker final : public WorldListener {
 public:
  explicit WorldTinker(const WorldSpec& spec)
      : WorldListener(spec.number, 601, {spec.num_tinker_requests, spec.client_look_us, 16}) {}

 private:
  ClientRequest next_request(uint64_t, uint64_t call) override {
    AskedOfTinker asked;
    ClientRequest request = choose(asked);
    if (asked.kind == TinkerAsk::kModelRequest) asked.request = request;
    if (is_one_of(random_, 3)) request.request_id = fmt::format("client {}", call);
    last_ = {asked, request};
    asked_[call] = std::move(asked);
    return request;
  }

  ClientRequest choose(AskedOfTinker& asked) {
    if (!again_.empty()) {
      asked.kind = TinkerAsk::kModelRequest;
      ClientRequest request = std::move(again_.front());
      again_.pop_front();
      return request;
    }
    // A repeat of the request before it, as the SDK sends after a lost reply.
    if (!last_.second.path.empty() && is_one_of(random_, 14)) {
      asked = last_.first;
      return last_.second;
    }
    if (!futures_.empty() && !is_one_of(random_, 3)) return retrieve(asked);
    if (session_.empty() || is_one_of(random_, 90)) {
      asked.kind = TinkerAsk::kSession;
      return post("create_session", R"({"sdk_version":"0.38.0"})");
    }
    if (is_broken_) {
      is_broken_ = false;
      const std::string ended = std::exchange(session_, "");
      model_.clear();
      if (is_one_of(random_, 2)) return post("session_heartbeat", named("session_id", ended));
      return post(fmt::format("sessions/{}/finish", ended), "{}");
    }
    if (model_.empty()) return new_model(asked);
    return of_model(asked);
  }

  ClientRequest retrieve(AskedOfTinker& asked) {
    asked = {TinkerAsk::kRetrieve, futures_.front(), {}};
    std::ranges::rotate(futures_, futures_.begin() + 1);
    return post("retrieve_future", named("request_id", asked.future));
  }

  ClientRequest new_model(AskedOfTinker& asked) {
    asked.kind = TinkerAsk::kFuture;
    const bool is_other = is_one_of(random_, 10);
    if (!saved_.empty() && is_one_of(random_, 4))
      return post(
          "load_weights",
          fmt::format(R"({{"session_id":"{}","model_seq_id":{},"path":"{}","optimizer":{}}})",
                      session_, num_models_++, one_of(saved_), is_one_of(random_, 2)));
    return post("create_model",
                fmt::format(R"({{"session_id":"{}","model_seq_id":{},"base_model":"policy",)"
                            R"("lora_config":{{"rank":{},"train_unembed":false}}}})",
                            session_, num_models_++, is_other ? 5 : 4));
  }

  ClientRequest of_model(AskedOfTinker& asked) {
    asked.kind = TinkerAsk::kModelRequest;
    const uint64_t draw = random_.below(20);
    if (draw < 6) return pass_requests();
    if (draw < 9) return of_seq("optim_step", R"("adam_params":{})");
    if (draw < 10)
      return of_seq(
          "save_weights",
          fmt::format(R"("path":"w{}","overwrite":{}{})", random_.below(3), is_one_of(random_, 2),
                      is_one_of(random_, 3) ? R"(,"ttl_seconds":1)" : ""));
    if (draw < 13) return sampler_weights();
    if (draw < 14 && !saved_.empty())
      return of_seq("load_weights", fmt::format(R"("path":"{}","optimizer":{})", one_of(saved_),
                                                is_one_of(random_, 2)));
    asked.kind = TinkerAsk::kOther;
    if (draw < 15 && !paths_.empty())
      return post("create_sampling_session",
                  fmt::format(R"({{"session_id":"{}","sampling_session_seq_id":{},)"
                              R"("model_path":"{}"}})",
                              session_, num_samplers_++, one_of(paths_)));
    if (draw < 19 && !samplers_.empty()) return sample(asked);
    return other(random_.below(8));
  }

  /// The SDK sends the parts of one call in parallel, the first last.
  ClientRequest pass_requests() {
    const int64_t seq = next_seq_++;
    const bool is_forward = is_one_of(random_, 6);
    std::vector<int32_t> tokens;
    for (uint64_t i = 0, count = 2 + random_.below(9); i < count; ++i)
      tokens.push_back(static_cast<int32_t>(1 + random_.below(60)));
    ClientRequest first =
        post("forward_backward", testing::tinker_pass_body(model_, seq, is_forward, tokens));
    first.content_type = "application/x-protobuf";
    if (!is_one_of(random_, 4)) return first;
    again_.push_back(std::move(first));
    return of_seq("optim_step", R"("adam_params":{"learning_rate":0.001})");
  }

  ClientRequest sampler_weights() {
    const int64_t number = num_samplers_++;
    if (is_one_of(random_, 3))
      return of_seq("save_weights_for_sampler",
                    fmt::format(R"("path":"s{}","kind":"snapshot"{})", random_.below(3),
                                is_one_of(random_, 3) ? R"(,"ttl_seconds":1)" : ""));
    return of_seq("save_weights_for_sampler",
                  fmt::format(R"("sampling_session_seq_id":{}{})", number,
                              is_one_of(random_, 3) ? R"(,"kind":"inflight")" : ""));
  }

  ClientRequest sample(AskedOfTinker& asked) {
    asked.kind = TinkerAsk::kFuture;
    const std::string& sampler = one_of(samplers_);
    const std::string more = is_one_of(random_, 4) ? R"(,"prompt_logprobs":true)" : "";
    const std::string top = is_one_of(random_, 5) ? R"(,"topk_prompt_logprobs":2)" : "";
    return post(
        "asample",
        fmt::format(R"({{"sampling_session_id":"{}","seq_id":{},"num_samples":{},)"
                    R"("prompt":{{"chunks":[{{"tokens":[3,4,{}],"type":"encoded_text"}}]}},)"
                    R"("sampling_params":{{"max_tokens":{}}}{}{}}})",
                    sampler, next_sample_++, 1 + random_.below(4), 5 + random_.below(7),
                    1 + random_.below(9), more, top));
  }

  ClientRequest other(uint64_t kind) {
    if (kind == 0) return post("session_heartbeat", named("session_id", session_));
    if (kind == 1) return post("get_info", named("model_id", model_));
    if (kind == 2) return post("no_such_route", "{}");
    if (kind == 3) return post("optim_step", R"({"model_id":"session-9:train:9","seq_id":1})");
    if (kind == 4 && !futures_.empty())
      return post("cancel_future", named("request_id", futures_.front()));
    if (kind == 5) return post("unload_model", named("model_id", std::exchange(model_, "")));
    if (kind == 6 && is_one_of(random_, 3)) is_broken_ = true;
    ClientRequest request = post("get_server_capabilities", "");
    request.method = "GET";
    return request;
  }

  void on_reply(const ClientReply& reply) override {
    const auto found = asked_.extract(reply.request);
    if (found.empty()) return;
    const AskedOfTinker& asked = found.mapped();
    if (reply.status == 429 && asked.kind == TinkerAsk::kModelRequest)
      return again_.push_back(asked.request);
    // A number of the model that did not arrive, or a session that has ended.
    if (reply.status == 404 || reply.status == 410) is_broken_ = true;
    if (reply.status >= 400) return;
    const auto json = parse_json(reply.body, "a reply");
    if (asked.kind == TinkerAsk::kRetrieve) {
      const bool waits = json.ok() && text_in(*json, "type") == "try_again";
      if (waits) return;
      std::erase(futures_, asked.future);
    }
    if (!json.ok() || !json->is_object()) return;  // samples and passes have protobuf answers
    learn(*json, asked.kind);
  }

  void learn(const Json& json, TinkerAsk kind) {
    if (const std::string name = text_in(json, "session_id"); kind == TinkerAsk::kSession) {
      session_ = name;
      model_.clear();
    }
    if (const std::string name = text_in(json, "sampling_session_id"); !name.empty())
      keep(samplers_, name);
    if (const std::string path = text_in(json, "path"); !path.empty())
      keep(path.find("/sampler_weights/") != std::string::npos ? paths_ : saved_, path);
    if (const std::string name = text_in(json, "request_id"); !name.empty()) {
      if (std::ranges::count(futures_, name) == 0) futures_.push_back(name);
    } else if (const std::string made = text_in(json, "model_id");
               kind == TinkerAsk::kRetrieve && !made.empty() && made != model_) {
      model_ = made;
      next_seq_ = 1;
      again_.clear();
    }
  }

  static std::string text_in(const Json& json, std::string_view key) {
    const Json* found = json.find(key);
    return found != nullptr && found->is_string() ? found->as_string() : std::string();
  }
  static std::string named(std::string_view key, std::string_view name) {
    return fmt::format(R"({{"{}":"{}"}})", key, name);
  }
  ClientRequest of_seq(const std::string& route, std::string_view more) {
    return post(route,
                fmt::format(R"({{"model_id":"{}","seq_id":{},{}}})", model_, next_seq_++, more));
  }
  static ClientRequest post(const std::string& route, std::string body) {
    ClientRequest request;
    request.method = "POST";
    request.path = "/api/v1/" + route;
    request.body = std::move(body);
    return request;
  }
  static void keep(std::vector<std::string>& names, const std::string& name) {
    constexpr size_t kNamesMax = 6;
    if (std::ranges::count(names, name) > 0) return;
    names.push_back(name);
    if (names.size() > kNamesMax) names.erase(names.begin());
  }
  const std::string& one_of(const std::vector<std::string>& names) {
    return names[random_.below(names.size())];
  }

  std::map<uint64_t, AskedOfTinker> asked_;  // by call
  std::pair<AskedOfTinker, ClientRequest> last_;
  std::deque<ClientRequest> again_;  // requests of the model that come next
  std::vector<std::string> futures_, samplers_, paths_, saved_;
  std::string session_, model_;  // empty: none
  int64_t next_seq_ = 1, next_sample_ = 0, num_models_ = 0, num_samplers_ = 0;
  bool is_broken_ = false;  // the next request begins a new session
};

}  // namespace

void add_tinker(WorldSpec& spec) {
  if (spec.number < kTinkerWorlds) return;
  RandomStream random(mix(spec.number, stable_hash("tinker")));
  spec.num_tinker_requests = 150 + random.below(250);
  spec.client_look_us = 1 + random.below(400);
}

std::string tinker_table(const WorldSpec& spec) {
  RandomStream random(mix(spec.number, stable_hash("the client's tenant")));
  return fmt::format(
      "[tenant.zoe]\nclient = true\nseq_len = {}\ninflight = {}\ncheckpoint_every = {}\n"
      "[tenant.zoe.adapter]\nrank = 4\ntargets = [\"all-linear\"]\n\n",
      24 + random.below(40), 1 + random.below(8), random.below(4));
}

std::vector<std::string> tinker_sets(const WorldSpec& spec) {
  if (spec.num_tinker_requests == 0) return {};
  RandomStream random(mix(spec.number, stable_hash("options of the tinker node")));
  const auto one_time = [&random](std::string_view name, std::string_view seldom,
                                  std::string_view often) {
    return fmt::format("node.tinker.{}=\"{}\"", name, is_one_of(random, 3) ? seldom : often);
  };
  return {
      fmt::format("node.tinker.max_inflight={}", 1 + random.below(8)),
      fmt::format("node.tinker.max_waiting={}", is_one_of(random, 2) ? 4 + random.below(4) : 1000),
      fmt::format("node.tinker.attempts_max={}", random.below(4)),
      fmt::format("node.tinker.snapshots_max={}", 1 + random.below(4)),
      fmt::format("node.tinker.sessions_max={}", is_one_of(random, 3) ? 1 + random.below(3) : 64),
      fmt::format("node.tinker.samplers_max={}", 1 + random.below(4)),
      one_time("sample_timeout", "8ms", "600s"),
      one_time("train_timeout", "6ms", "1800s"),
      one_time("live_timeout", "5ms", "300s"),
      one_time("session_timeout", "80ms", "60s")};
}

std::shared_ptr<Outside> make_world_tinker(const WorldSpec& spec) {
  return std::make_shared<WorldTinker>(spec);
}

}  // namespace primerl::sim
