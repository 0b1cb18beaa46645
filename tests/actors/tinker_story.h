/// The fixture for tests of Tinker: clients, a trainer and engines by hand, a byte tokenizer.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "actors/tinker/tinker.h"
#include "graph/base/json.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/gateway_story.h"
#include "tests/actors/tinker_pass.h"

namespace primerl::testing {

struct TinkerStory : ::testing::Test {
  static constexpr InstanceId kTrainer{41};
  static constexpr InstanceId kRouter{40};

  TinkerStory() {
    options.session_timeout = Duration::seconds(300);
    tenants.push_back(a_tenant());
    Tenant& tenant = tenants.front();
    tenant.name = "alice";
    tenant.is_client = true;
    tenant.seq_len = 32;
    tenant.share = 1;
    tenant.base_model = "tiny";
    tenant.served_as = {"Org/Tiny"};
    tenant.adapter.rank = 8;
    tenant.adapter.targets = {"all-linear", "lm_head"};
  }
  /// A second tenant, in slot 1.
  void add_tenant(const std::string& name) {
    tenants.push_back(tenants.front());
    tenants.back().name = name;
    tenants.back().slot = TenantSlot(1);
  }
  NodeRunner<Tinker>& tinker() {
    if (runner == nullptr) {
      tenants.front().slot = TenantSlot(0);
      runner = std::make_unique<NodeRunner<Tinker>>(options);
      runner->set_tenants(tenants);
      runner->use("listener", listener);
      runner->use("tokenizer_of", tokenizer);
      runner->set_targets("generate", {kRouter});
      for (const char* output : {"pass", "update", "weights"})
        runner->set_targets(output, {kTrainer});
      work();
      live(0);
    }
    return *runner;
  }
  void work() {
    const auto done = runner->run_work_until_done();
    ASSERT_TRUE(done.ok()) << done.error().text();
  }
  template <class T>
  void give(const std::string& input, T message) {
    Given given;
    given.tenant = TenantSlot(slot);
    const Status done = runner->give(input, std::move(message), given);
    ASSERT_TRUE(done.ok()) << done.error().text();
    work();
  }
  void advance(Duration duration) {
    const Status done = tinker().advance(duration);
    ASSERT_TRUE(done.ok()) << done.error().text();
    work();
  }

  // A client.

  uint64_t client(ClientRequest request) {
    tinker();
    EXPECT_FALSE(listener.accepts.empty()) << "nothing is accepted";
    const uint64_t id = listener.accepts.front();
    listener.accepts.pop_front();
    listener.answers.push_back({id, OutsideEnd::kDone, write_client_request(request)});
    work();
    return id;
  }
  uint64_t post(const std::string& route, const std::string& body,
                const std::string& content_type = "") {
    ClientRequest request;
    request.method = "POST";
    request.path = "/api/v1/" + route;
    request.body = body;
    request.tenant = key_of;
    request.content_type = content_type;
    return client(std::move(request));
  }
  uint64_t get(const std::string& route) {
    ClientRequest request;
    request.method = "GET";
    request.path = "/api/v1/" + route;
    request.tenant = key_of;
    return client(std::move(request));
  }
  bool has_reply(uint64_t call) const { return listener.replies.contains(call); }
  /// The status and body of a reply that has come.
  std::string reply(uint64_t call) {
    if (!has_reply(call)) return "none";
    const ClientReply& found = listener.replies[call];
    return fmt::format("{} {}", found.status, found.body);
  }
  std::string said(const std::string& route, const std::string& body) {
    return reply(post(route, body));
  }
  /// A member of the JSON body of a reply.
  std::string member(uint64_t call, const std::string& key) {
    if (!has_reply(call)) return "no reply";
    const auto json = parse_json(listener.replies[call].body, "a reply");
    if (!json.ok() || json->find(key) == nullptr) return reply(call);
    return json->find(key)->as_string();
  }
  /// The request id of a reply with a future.
  std::string future(uint64_t call) { return member(call, "request_id"); }
  uint64_t retrieve(const std::string& request) {
    return post("retrieve_future", fmt::format(R"({{"request_id":"{}"}})", request));
  }
  /// The answer of a future, which must have one.
  std::string answer(const std::string& request) { return reply(retrieve(request)); }
  void leave(std::vector<uint64_t> calls) {
    ASSERT_FALSE(listener.closed_calls.empty());
    listener.answers.push_back(
        {listener.closed_calls.front(), OutsideEnd::kDone, write_closed(calls)});
    listener.closed_calls.pop_front();
    work();
  }

  // What clients ask for.

  std::string new_session(const std::string& more = "") {
    return member(post("create_session", R"({"sdk_version":"0.38.0")" + more + "}"), "session_id");
  }
  std::string create_model_body(const std::string& session, int seq = 0,
                                const std::string& lora = R"("rank":8)",
                                const std::string& base = "tiny") {
    return fmt::format(
        R"({{"session_id":"{}","model_seq_id":{},"base_model":"{}","lora_config":{{{}}}}})",
        session, seq, base, lora);
  }
  /// A model that is open; its name.
  std::string new_model(const std::string& session, int seq = 0) {
    const std::string request = future(post("create_model", create_model_body(session, seq)));
    done(WeightsAction::kReset);
    EXPECT_THAT(answer(request), ::testing::StartsWith("200 {\"model_id\""));
    return fmt::format("{}:train:{}", session, seq);
  }
  uint64_t pass(const std::string& model, int seq, bool is_forward = false) {
    return post("forward_backward", tinker_pass_body(model, seq, is_forward),
                "application/x-protobuf");
  }
  uint64_t step(const std::string& model, int seq) {
    return post("optim_step",
                fmt::format(R"({{"model_id":"{}","seq_id":{},"adam_params":{{}}}})", model, seq));
  }
  uint64_t save(const std::string& model, int seq, const std::string& name,
                const std::string& more = "") {
    return post("save_weights", fmt::format(R"({{"model_id":"{}","seq_id":{},"path":"{}"{}}})",
                                            model, seq, name, more));
  }
  uint64_t save_for_sampler(const std::string& model, int seq, const std::string& what) {
    return post("save_weights_for_sampler",
                fmt::format(R"({{"model_id":"{}","seq_id":{},{}}})", model, seq, what));
  }
  /// A sampler with weights of its own; its name.
  std::string new_sampler(const std::string& model, int seq, int sampler_seq, uint32_t adapter) {
    const std::string request = future(
        save_for_sampler(model, seq, fmt::format(R"("sampling_session_seq_id":{})", sampler_seq)));
    publish(WeightsAction::kSnapshot, adapter);
    return member(retrieve(request), "sampling_session_id");
  }
  static std::string sample_body(const std::string& sampler, int64_t seq,
                                 const std::string& more = "",
                                 const std::string& params = R"("max_tokens":4,"seed":7)") {
    return fmt::format(
        R"({{"sampling_session_id":"{}","seq_id":{},"prompt":{{"chunks":[{{"tokens":[97,98],)"
        R"("type":"encoded_text"}}]}},"sampling_params":{{{}}}{}}})",
        sampler, seq, params, more);
  }
  uint64_t sample(const std::string& sampler, int64_t seq, const std::string& more = "",
                  const std::string& params = R"("max_tokens":4,"seed":7)") {
    return post("asample", sample_body(sampler, seq, more, params));
  }

  // The trainer and the engines.

  std::vector<PassRequest> passes() { return tinker().take<PassRequest>("pass"); }
  std::vector<UpdateRequest> updates() { return tinker().take<UpdateRequest>("update"); }
  std::vector<WeightsRequest> weights() { return tinker().take<WeightsRequest>("weights"); }
  std::vector<GenerateRequest> requests() { return tinker().take<GenerateRequest>("generate"); }

  /// The trainer's answer to the weights request that is open, which must be this one.
  WeightsRequest done(WeightsAction action, uint32_t adapter = 0, int64_t version = 0,
                      const std::string& fault = "") {
    const auto sent = weights();
    if (sent.size() != 1) {
      ADD_FAILURE() << sent.size() << " weights requests";
      return {};
    }
    EXPECT_EQ(sent[0].action, action);
    WeightsDone answer;
    answer.request = sent[0].request;
    answer.adapter = AdapterId(adapter);
    answer.version = PolicyVersion(version);
    if (!fault.empty()) answer.fault = {static_cast<uint8_t>(Code::kInvalid), fault};
    give("weights_done", answer);
    return sent[0];
  }
  void live(int64_t version, uint32_t adapter = AdapterId::kNone) {
    PolicyLive message;
    message.version = PolicyVersion(version);
    message.adapter = AdapterId(adapter);
    give("policy", message);
  }
  /// The trainer publishes, and all engines get it.
  void publish(WeightsAction action, uint32_t adapter, int64_t version = 1) {
    done(action, adapter, version);
    live(version, action == WeightsAction::kSnapshot ? adapter : AdapterId::kNone);
  }
  void passed(uint64_t request, float logprob = -0.5F) {
    PassDone answer;
    answer.request = request;
    answer.result.logprobs = {{logprob, logprob}};
    answer.result.totals.loss = 1.5;
    give("passed", answer);
  }
  void updated(uint64_t request) {
    UpdateDone answer;
    answer.request = request;
    answer.version = PolicyVersion(1);
    answer.grad_norm = 2;
    give("updated", answer);
  }
  void complete(const GenerateRequest& request, const std::string& text = "xy",
                FinishReason end = FinishReason::kLength) {
    Completion completion;
    completion.request = request.request;
    completion.session = request.session;
    completion.attempt = request.attempt;
    completion.end = end;
    completion.detail = "as the test says";
    for (const char c : text) completion.tokens.push_back(static_cast<unsigned char>(c));
    completion.logprobs.assign(completion.tokens.size(), -0.25F);
    completion.spans = {{PolicyVersion(3), 0, static_cast<int32_t>(text.size())}};
    if (request.sampling.prompt_logprobs) completion.prompt_logprobs = {-2.0F};
    give("completion", completion);
  }

  std::vector<Tenant> tenants;
  TinkerOptions options;
  uint32_t slot = 0;   // of messages to the actor
  std::string key_of;  // the tenant of the client's key
  HandListener listener;
  ByteTokenizer tokenizer;
  std::unique_ptr<NodeRunner<Tinker>> runner;
};

}  // namespace primerl::testing
