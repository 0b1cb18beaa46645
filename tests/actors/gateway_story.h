/// The fixture for tests of Gateway: clients and completions by hand, a byte tokenizer.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "actors/gateway/gateway.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl::testing {

/// A listener whose clients are the test.
class HandListener final : public Outside {
 public:
  Status ask(OutsideCall call) override {
    calls.push_back(call.body);
    ASSIGN_OR_RETURN(HttpCall read, read_http_call(call.body));
    if (read.kind == HttpCall::Kind::kAccept) accepts.push_back(call.id);
    if (read.kind == HttpCall::Kind::kClosed) closed_calls.push_back(call.id);
    if (read.kind == HttpCall::Kind::kAddress) addresses.push_back(call.id);
    if (read.kind == HttpCall::Kind::kReply) {
      EXPECT_FALSE(replies.contains(read.reply.request)) << "replied twice";
      replies[read.reply.request] = read.reply;
      answers.push_back({call.id, OutsideEnd::kDone, write_sent(true)});
    }
    return ok();
  }
  void forget(uint32_t, uint64_t) override {}
  std::vector<OutsideAnswer> receive_answers() override {
    std::vector<OutsideAnswer> received;
    for (; !answers.empty() && received.size() < kOutsideAnswersMax; answers.pop_front())
      received.push_back(std::move(answers.front()));
    return received;
  }
  void stop() override { is_stopped = true; }
  void set_wake(std::function<void()>) override {}
  bool has_work() const override { return !answers.empty(); }

  std::deque<uint64_t> accepts, closed_calls, addresses;
  std::map<uint64_t, ClientReply> replies;
  std::deque<OutsideAnswer> answers;
  std::vector<std::string> calls;
  bool is_stopped = false;
};

struct GatewayStory : ::testing::Test {
  static constexpr InstanceId kRouter{40};

  GatewayStory() {
    tenants.push_back(a_tenant());
    tenants.front().seq_len = 32;
    tenants.front().share = 1;
  }
  NodeRunner<Gateway>& gateway() {
    if (runner == nullptr) {
      runner = std::make_unique<NodeRunner<Gateway>>(options);
      runner->set_tenants(tenants);
      runner->use("listener", listener);
      runner->use("tokenizer", tokenizer);
      runner->set_targets("generate", {kRouter});
      work();
      if (is_live) live(0);
    }
    return *runner;
  }
  void work() {
    const auto done = runner->run_work_until_done();
    ASSERT_TRUE(done.ok()) << done.error().text();
  }
  void live(int64_t version, uint32_t tenant = 0) {
    Given given;
    given.tenant = TenantSlot(tenant);
    ASSERT_TRUE(runner->give("policy", PolicyLive{PolicyVersion(version)}, given).ok());
    work();
  }
  /// A client's request; its number.
  uint64_t client(ClientRequest request) {
    gateway();
    EXPECT_FALSE(listener.accepts.empty()) << "the gateway accepts nothing";
    const uint64_t id = listener.accepts.front();
    listener.accepts.pop_front();
    listener.answers.push_back({id, OutsideEnd::kDone, write_client_request(request)});
    work();
    return id;
  }
  uint64_t post(const std::string& path, const std::string& body, const std::string& session = "") {
    ClientRequest request;
    request.method = "POST";
    request.path = path;
    request.body = body;
    request.session = session;
    return client(std::move(request));
  }
  uint64_t generate(const std::string& body = R"({"token_ids":[97,98]})",
                    const std::string& session = "") {
    return post("/inference/v1/generate", body, session);
  }
  void leave(std::vector<uint64_t> requests) {
    ASSERT_FALSE(listener.closed_calls.empty());
    listener.answers.push_back(
        {listener.closed_calls.front(), OutsideEnd::kDone, write_closed(requests)});
    listener.closed_calls.pop_front();
    work();
  }
  std::vector<GenerateRequest> requests() { return gateway().take<GenerateRequest>("generate"); }
  void complete(const GenerateRequest& request, const std::string& text = "xy\n",
                FinishReason end = FinishReason::kStop, uint32_t tenant = 0) {
    Completion completion;
    completion.request = request.request;
    completion.session = request.session;
    completion.attempt = request.attempt;
    completion.end = end;
    completion.detail = "as the test says";
    for (const char c : text) completion.tokens.push_back(static_cast<unsigned char>(c));
    completion.logprobs.assign(completion.tokens.size(), logprob);
    completion.num_cached_tokens = 1;
    Given given;
    given.tenant = TenantSlot(tenant);
    ASSERT_TRUE(runner->give("completion", completion, given).ok());
    work();
  }
  bool has_reply(uint64_t request) const { return listener.replies.contains(request); }
  /// The status and body of a reply that has come.
  std::string reply(uint64_t request) {
    if (!has_reply(request)) return "none";
    const ClientReply& found = listener.replies[request];
    return fmt::format("{} {}", found.status, found.body);
  }

  std::vector<Tenant> tenants;
  GatewayOptions options;
  bool is_live = true;
  float logprob = -0.25F;
  HandListener listener;
  ByteTokenizer tokenizer;
  std::unique_ptr<NodeRunner<Gateway>> runner;
};

}  // namespace primerl::testing
