// A long random test of a router: requests, cancels, loads that arrive late, engines that die and
// come back, engines that fail their requests for a while. At every choice the router's numbers of
// open requests equal those of a separate count, and at the end they are 0.
//
// PRIMERL_ROUTER_REQUESTS=1000000 build/bin/actors_test --gtest_filter='*RouterChaos.*' takes ten
// seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "actors/router/router.h"
#include "graph/base/random.h"
#include "graph/testing/node_runner.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

constexpr uint32_t kEngines = 4;

/// Requests sent to the current process of an engine, and those that it has reported as ended.
struct Books {
  uint64_t num_sent = 0;
  uint64_t num_finished = 0;  // in the newest load that the router received
};
using AllBooks = std::map<InstanceId, Books>;

/// Chooses like another policy, and compares the numbers of open requests.
class Auditor final : public RoutePolicy {
 public:
  Auditor(std::string_view audited, AllBooks& books)
      : audited_(make_route_policy(audited)), books_(books) {}
  bool wants_known_tokens() const override { return audited_->wants_known_tokens(); }
  std::optional<size_t> home(const RouteQuestion& question,
                             std::span<const InstanceId> in_use) const override {
    return audited_->home(question, in_use);
  }
  size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) override {
    for (const EngineView& view : engines) {
      const Books& books = books_[view.engine];
      EXPECT_EQ(view.num_requests, books.num_sent - books.num_finished) << view.engine.value;
    }
    const size_t chosen = audited_->choose(question, engines);
    ++books_[engines[chosen].engine].num_sent;
    return chosen;
  }

 private:
  const std::unique_ptr<RoutePolicy> audited_;
  AllBooks& books_;
};

class Life {
 public:
  Life(const std::string& policy, uint64_t seed)
      : draw_(seed), router_({.policy = "auditor"}, audited_router(policy)) {
    auto tenant = testing::a_tenant();
    tenant.inflight_max = 300;
    router_.set_tenants({tenant, tenant});
    std::vector<InstanceId> targets;
    for (uint32_t i = 0; i < kEngines; ++i) targets.push_back(id(i));
    router_.set_targets("prefill", targets);
    router_.set_targets("abort", targets);
  }

  void live(uint64_t num_requests) {
    while (next_request_ < num_requests) {
      const uint64_t what = draw_.below(1000);
      const auto index = static_cast<uint32_t>(draw_.below(kEngines));
      if (draw_.below(500) == 0) servers_[index].is_failing = !servers_[index].is_failing;
      if (what < 400)
        submit();
      else if (what < 450)
        cancel();
      else if (what < 700)
        work(index, 1 + draw_.below(8));
      else if (what < 990)
        tell(index);
      else if (what < 995)
        lose(index);
      else
        advance(draw_.below(2) == 0 ? Duration::seconds(20) : Duration::milliseconds(2));
      take_what_was_sent();
    }
  }
  /// Lets the engines do all their work.
  void end() {
    for (int round = 0; round < 10'000 && !open_.empty(); ++round) {
      for (uint32_t i = 0; i < kEngines; ++i) work(i, 1000), tell(i);
      advance(Duration::milliseconds(2));
      take_what_was_sent();
    }
    for (uint32_t i = 0; i < kEngines; ++i) tell(i, 1);
  }
  size_t num_open() const { return open_.size(); }
  bool idle() { return router_.idle(); }
  int64_t num_opened() const { return router_.counter("breakers_opened"); }
  int64_t num_closed() const { return router_.counter("breakers_closed"); }
  /// The open requests of every engine, as the router counts them; the auditor compares them.
  std::vector<uint64_t> guards() {
    submit();
    take_what_was_sent();
    std::vector<uint64_t> guards;
    for (const auto& [engine, books] : books_)
      guards.push_back(books.num_sent - books.num_finished);
    return guards;
  }

 private:
  struct FakeServer {
    bool is_up = true, is_failing = false;
    std::deque<uint64_t> under_way;  // sent, not received yet
    std::set<uint64_t> here;
    uint64_t num_received = 0, num_finished = 0, num_completed = 0, num_failed = 0;
  };

  static InstanceId id(uint32_t index) { return InstanceId(10 + index); }
  std::unique_ptr<Router> audited_router(const std::string& policy) {
    const RoutePolicyContract auditor{
        "auditor", "", [this, policy] { return std::make_unique<Auditor>(policy, books_); }};
    return std::make_unique<Router>(RouterOptions{.policy = "auditor"}, std::vector{auditor});
  }
  static TenantSlot tenant_of(uint64_t request) { return TenantSlot(request % 2); }
  static Given asker_of(uint64_t request) {
    return {.tenant = tenant_of(request), .sender = InstanceId(3), .origin = InstanceId(3)};
  }

  void submit() {
    GenerateRequest request;
    request.request = next_request_++;
    request.session = draw_.below(200);
    request.prompt_tokens.assign(40, static_cast<int32_t>(request.session % 10));
    const TenantSlot tenant = tenant_of(request.request);
    request.answered = std::exchange(answered_[tenant], {});
    open_.insert(request.request);
    EXPECT_TRUE(router_.give("generate", request, asker_of(request.request)).ok());
  }
  void cancel() {
    if (open_.empty()) return;
    auto which = open_.lower_bound(*open_.begin() + draw_.below(100));
    if (which == open_.end()) which = open_.begin();
    EXPECT_TRUE(router_.give("cancel", Cancel{{*which}}, asker_of(*which)).ok());
  }
  void receive(FakeServer& server, uint64_t most) {
    for (; most > 0 && !server.under_way.empty(); --most) {
      server.here.insert(server.under_way.front());
      server.under_way.pop_front();
      ++server.num_received;
    }
  }
  void work(uint32_t index, uint64_t most) {
    FakeServer& server = servers_[index];
    receive(server, most);
    while (!server.here.empty() && draw_.below(most + 1) > 0) {
      ++(server.is_failing ? server.num_failed : server.num_completed);
      finish(server, *server.here.begin());
    }
  }
  /// Ends as requested, as failed, or aborted, which counts as neither.
  void finish(FakeServer& server, uint64_t request) {
    server.here.erase(request);
    ++server.num_finished;
    answer(request);
  }
  void answer(uint64_t request) {
    // A request that a dead engine had answered may be answered again.
    if (open_.erase(request) > 0) answered_[tenant_of(request)].push_back(request);
  }
  void tell(uint32_t index, int32_t room_min = 0) {
    FakeServer& server = servers_[index];
    if (!server.is_up) {
      EXPECT_TRUE(router_.peer({PeerEvent::Kind::kUp, id(index), 1}).ok());
      books_[id(index)] = Books();
      server = FakeServer();
    }
    EngineLoad load;
    load.engine = id(index);
    load.num_received = server.num_received;
    load.num_finished = server.num_finished;
    load.num_completed = server.num_completed;
    load.num_failed = server.num_failed;
    load.num_room = room_min + static_cast<int32_t>(draw_.below(20));
    for (const uint32_t tenant : {0U, 1U})
      CHECK(load.applied.set({TenantSlot(tenant)}, PolicyVersion(0)), "too many keys");
    books_[id(index)].num_finished = server.num_finished;
    EXPECT_TRUE(router_.give("load", load).ok());
  }
  void lose(uint32_t index) {
    take_what_was_sent();
    FakeServer& server = servers_[index];
    if (!server.is_up) return;
    server = FakeServer();
    server.is_up = false;
    books_[id(index)] = Books();
    EXPECT_TRUE(router_.peer({PeerEvent::Kind::kDown, id(index), 1}).ok());
  }
  void advance(Duration duration) { EXPECT_TRUE(router_.advance(duration).ok()); }

  void take_what_was_sent() {
    const auto targets = router_.targets_of("prefill");
    const auto requests = router_.take<GenerateRequest>("prefill");
    for (size_t i = 0; i < requests.size(); ++i)
      servers_[targets[i].value - id(0).value].under_way.push_back(requests[i].request);
    const auto aborted = router_.targets_of("abort");
    const auto aborts = router_.take<Abort>("abort");
    for (size_t i = 0; i < aborts.size(); ++i) {
      FakeServer& server = servers_[aborted[i].value - id(0).value];
      receive(server, server.under_way.size());  // the same path: it came first
      if (server.here.contains(aborts[i].request)) finish(server, aborts[i].request);
    }
    for (const auto& refused : router_.take<Completion>("refused")) answer(refused.request);
  }

  RandomStream draw_;
  AllBooks books_;
  NodeRunner<Router> router_;
  std::map<uint32_t, FakeServer> servers_;
  std::set<uint64_t> open_;
  std::map<TenantSlot, std::vector<uint64_t>> answered_;  // to be reported with the next request
  uint64_t next_request_ = 1;
};

uint64_t num_requests() {
  const char* const text = std::getenv("PRIMERL_ROUTER_REQUESTS");
  return text == nullptr ? 10'000 : std::strtoull(text, nullptr, 10);
}

struct RouterChaos : ::testing::TestWithParam<std::string> {};

TEST_P(RouterChaos, EveryRequestIsAnsweredAndEveryGuardEndsAtZero) {
  Life life(GetParam(), 17);
  life.live(num_requests());
  life.end();
  EXPECT_EQ(life.num_open(), 0U);
  EXPECT_TRUE(life.idle());
  EXPECT_GT(life.num_closed(), 0);
  EXPECT_GE(life.num_opened(), life.num_closed());
  // One more request, and only that one is open.
  const auto guards = life.guards();
  EXPECT_THAT(guards, ::testing::SizeIs(kEngines));
  EXPECT_EQ(std::accumulate(guards.begin(), guards.end(), uint64_t{0}), 1U);
}

INSTANTIATE_TEST_SUITE_P(Policies, RouterChaos,
                         ::testing::Values("sticky_least_loaded", "consistent_hash", "power_of_two",
                                           "cache_aware"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace primerl
