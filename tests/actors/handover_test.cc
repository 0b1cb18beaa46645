// From Prefill to Decode: whatever happens between them, a request has exactly one Completion and
// its KV blocks are freed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "actors/decode/decode.h"
#include "actors/prefill/prefill.h"
#include "graph/testing/node_runner.h"
#include "kernels/scripted/scripted_engine.h"
#include "tests/actors/fakes.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TenantSlot kTenant(1);
const Given kRollout{.tenant = kTenant, .sender = InstanceId(5), .origin = InstanceId(3)};

std::unique_ptr<Engine> an_engine(int32_t max_waiting = 1000, int32_t max_running = 8) {
  ScriptedEngineOptions options;
  options.max_waiting = max_waiting;
  options.max_running = max_running;
  options.kv_blocks = 40;
  options.max_batched_tokens = 16;
  return *make_scripted_engine(options);
}

/// Prefill and Decode; the test delivers the messages between them.
class Pair {
 public:
  Pair(Engine& prefill_engine, Engine& decode_engine, Duration lease = Duration::seconds(30))
      : prefill(with_lease(lease)), weights_(make_memory_channel()) {
    prefill.use("engine", prefill_engine);
    decode.use("engine", decode_engine);
    for (NodeRunnerCore* node :
         {static_cast<NodeRunnerCore*>(&prefill), static_cast<NodeRunnerCore*>(&decode)}) {
      node->set_tenants({testing::a_tenant(), testing::a_tenant()});
      node->use("weights", *weights_);
    }
  }

  Status ask(uint64_t request) {
    GenerateRequest made;
    made.request = request;
    made.session = 70 + request;
    made.attempt = 2;
    made.prompt_tokens = {2, 3, 4};
    made.sampling.max_tokens = static_cast<int32_t>(1 + request % 5);
    made.seed = request;
    return prefill.give("request", made, kRollout);
  }
  void work_prefill() {
    ASSERT_TRUE(prefill.run_work().ok());
    for (auto& emission : prefill.emissions("done")) underway_.push_back(emission);
    prefill.forget_sent("done");
  }
  size_t num_underway() const { return underway_.size(); }
  /// Delivers the oldest PrefillDone, after `change`.
  void deliver(const std::function<void(PrefillDone&, Given&)>& change = {}) {
    const Emission emission = underway_.front();
    underway_.erase(underway_.begin());
    PrefillDone done = emission.payload.as<PrefillDone>();
    Given given{emission.options.tenant, NodeRunnerCore::kSelf, emission.options.origin};
    if (change) change(done, given);
    ASSERT_TRUE(decode.give("request", done, given).ok());
  }
  void advance(Duration by) {
    ASSERT_TRUE(prefill.advance(by).ok());
    ASSERT_TRUE(decode.advance(by).ok());
  }
  std::vector<Completion> answers() {
    auto all = decode.sent<Completion>("completion");
    for (auto& each : prefill.sent<Completion>("refused")) all.push_back(each);
    return all;
  }

  NodeRunner<Prefill> prefill;
  NodeRunner<Decode> decode;

 private:
  static PrefillOptions with_lease(Duration lease) {
    PrefillOptions options;
    options.lease = lease;
    return options;
  }

  std::shared_ptr<WeightChannel> weights_;
  std::vector<Emission> underway_;
};

void run(Engine& engine) {
  for (int i = 0; i < 1000 && engine.has_work(); ++i) ASSERT_TRUE(engine.step().ok());
}

void expect_free(const Engine& engine) {
  EXPECT_EQ(engine.state().num_free_blocks, engine.state().num_blocks);
  EXPECT_EQ(engine.state().num_held + engine.state().num_waiting + engine.state().num_running, 0);
}

TEST(Handover, NamesTheOwnerOfTheKvAndItsLease) {
  const auto engine = an_engine();
  Pair pair(*engine, *engine, Duration::seconds(7));
  ASSERT_TRUE(pair.ask(1).ok());
  run(*engine);
  pair.work_prefill();
  ASSERT_EQ(pair.num_underway(), 1U);
  pair.deliver([](const PrefillDone& done, const Given&) {
    EXPECT_EQ(done.kv.owner, NodeRunnerCore::kSelf);
    EXPECT_EQ(done.kv.incarnation, NodeRunnerCore::kIncarnation);
    EXPECT_EQ(done.kv.lease, Duration::seconds(7));
  });
  EXPECT_EQ(engine->state().num_held, 0);
}

TEST(Handover, DecodeOnAnotherEngineRefusesOnceAndTheLeaseFreesTheBlocks) {
  const auto engine = an_engine(), other = an_engine();
  Pair pair(*engine, *other);
  for (uint64_t i = 0; i < 3; ++i) ASSERT_TRUE(pair.ask(i).ok());
  run(*engine);
  pair.work_prefill();
  while (pair.num_underway() > 0) pair.deliver();
  ASSERT_TRUE(pair.decode.run_work().ok());
  const auto answers = pair.answers();
  ASSERT_THAT(answers, SizeIs(3));
  for (const auto& answer : answers) {
    EXPECT_EQ(answer.end, FinishReason::kRefused);
    EXPECT_EQ(answer.session, 70 + answer.request);
    EXPECT_EQ(answer.attempt, 2U);
    EXPECT_THAT(answer.detail, HasSubstr("decode cannot take the prompt over"));
  }
  EXPECT_EQ(pair.decode.emissions("completion")[0].options.origin, kRollout.origin);
  EXPECT_LT(engine->state().num_free_blocks, engine->state().num_blocks);
  pair.advance(Duration::seconds(30) - Duration::milliseconds(1));
  EXPECT_EQ(engine->state().num_held, 3);
  pair.advance(Duration::milliseconds(1));
  expect_free(*engine);
  EXPECT_THAT(pair.answers(), SizeIs(3));
}

TEST(Handover, AHandleOfAnotherOwnerIncarnationOrRequestIsRefused) {
  const std::vector<std::pair<std::string, std::function<void(PrefillDone&, Given&)>>> cases = {
      {"instance", [](PrefillDone& done, Given&) { done.kv.owner = InstanceId(77); }},
      {"incarnation", [](PrefillDone& done, Given&) { ++done.kv.incarnation; }},
      {"incarnation", [](PrefillDone& done, Given&) { --done.kv.incarnation; }},
      {"request", [](PrefillDone& done, Given&) { ++done.kv.id; }},
      {"request", [](PrefillDone&, Given& given) { given.tenant = TenantSlot(0); }}};
  for (const auto& [word, change] : cases) {
    const auto engine = an_engine();
    Pair pair(*engine, *engine);
    ASSERT_TRUE(pair.ask(1).ok());
    run(*engine);
    pair.work_prefill();
    pair.deliver(change);
    ASSERT_THAT(pair.answers(), SizeIs(1)) << word;
    EXPECT_EQ(pair.answers()[0].end, FinishReason::kRefused);
    EXPECT_THAT(pair.answers()[0].detail, HasSubstr(word));
    EXPECT_EQ(engine->state().num_running, 0) << word;
    pair.advance(Duration::seconds(30));
    expect_free(*engine);
  }
}

TEST(Handover, ALeaseThatEndsBeforeTheHandoverComesIsAnsweredOnce) {
  const auto engine = an_engine();
  Pair pair(*engine, *engine, Duration::seconds(2));
  ASSERT_TRUE(pair.ask(4).ok());
  run(*engine);
  pair.work_prefill();
  pair.advance(Duration::seconds(2));
  expect_free(*engine);
  ASSERT_TRUE(pair.decode.run_work().ok());
  EXPECT_THAT(pair.answers(), IsEmpty()) << "the receiver of the handle answers";
  pair.deliver();
  ASSERT_THAT(pair.answers(), SizeIs(1));
  EXPECT_EQ(pair.answers()[0].end, FinishReason::kRefused);
  EXPECT_EQ(pair.answers()[0].detail, kLeaseEnded);
  EXPECT_EQ(pair.answers()[0].session, 74U);
  EXPECT_TRUE(pair.decode.idle());
}

TEST(Handover, ALeaseThatEndsAfterTheHandoverChangesNothing) {
  const auto engine = an_engine();
  Pair pair(*engine, *engine, Duration::seconds(2));
  ASSERT_TRUE(pair.ask(4).ok());
  run(*engine);
  pair.work_prefill();
  pair.deliver();
  pair.advance(Duration::seconds(9));
  run(*engine);
  ASSERT_TRUE(pair.decode.run_work().ok());
  ASSERT_THAT(pair.answers(), SizeIs(1));
  EXPECT_THAT(pair.answers()[0].tokens, ::testing::Not(IsEmpty()));
}

TEST(Handover, ARequestWaitsForAFullQueueAndIsNotRefused) {
  const auto engine = an_engine(2, 1);
  Pair pair(*engine, *engine);
  for (uint64_t i = 0; i < 9; ++i) ASSERT_TRUE(pair.ask(i).ok());
  EXPECT_TRUE(pair.prefill.is_paused("request"));
  EXPECT_FALSE(pair.prefill.idle());
  for (int i = 0; i < 300 && pair.answers().size() < 9; ++i) {
    ASSERT_TRUE(engine->step().ok());
    pair.work_prefill();
    while (pair.num_underway() > 0) pair.deliver();
    ASSERT_TRUE(pair.decode.run_work().ok());
    EXPECT_LE(engine->state().num_waiting, 2);
  }
  const auto answers = pair.answers();
  ASSERT_THAT(answers, SizeIs(9));
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].request, i) << "in order";
    EXPECT_NE(answers[i].end, FinishReason::kRefused);
  }
  EXPECT_FALSE(pair.prefill.is_paused("request"));
  EXPECT_TRUE(pair.prefill.idle());
  expect_free(*engine);
}

TEST(Handover, ALoadReportsFreeSpaceAndReceivedRequests) {
  const auto engine = an_engine(2, 1);
  Pair pair(*engine, *engine);
  pair.work_prefill();
  EXPECT_EQ(pair.prefill.sent<EngineLoad>("load").back().num_room, 2);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(pair.ask(i).ok());
  for (int i = 0; i < 2; ++i) pair.work_prefill();
  ASSERT_TRUE(pair.prefill.is_paused("request")) << "the fourth waits for room";
  const auto load = pair.prefill.sent<EngineLoad>("load").back();
  EXPECT_EQ(load.num_room, 0);
  EXPECT_EQ(load.num_received, 4U);
  EXPECT_EQ(load.num_finished, 0U) << "the one that waits here counts";
}

TEST(Handover, ARestartedRouterGetsTheLoadAgain) {
  const auto engine = an_engine();
  Pair pair(*engine, *engine);
  ASSERT_TRUE(pair.ask(1).ok());
  for (int i = 0; i < 2; ++i) pair.work_prefill();
  const size_t num_sent = pair.prefill.sent<EngineLoad>("load").size();
  pair.work_prefill();
  ASSERT_THAT(pair.prefill.sent<EngineLoad>("load"), SizeIs(num_sent)) << "nothing has changed";
  const InstanceId router(9);
  ASSERT_TRUE(pair.prefill.peer({PeerEvent::Kind::kDown, router, 1}).ok());
  EXPECT_THAT(pair.prefill.sent<EngineLoad>("load"), SizeIs(num_sent));
  ASSERT_TRUE(pair.prefill.peer({PeerEvent::Kind::kUp, router, 2}).ok());
  const auto loads = pair.prefill.sent<EngineLoad>("load");
  ASSERT_THAT(loads, SizeIs(num_sent + 1));
  EXPECT_EQ(loads.back().num_received, 1U);
}

TEST(Handover, AnAbortOfTheParkedRequestIsAnsweredByPrefill) {
  const auto engine = an_engine(1, 1);
  Pair pair(*engine, *engine);
  ASSERT_TRUE(pair.ask(1).ok());
  ASSERT_TRUE(pair.ask(2).ok());
  ASSERT_TRUE(pair.ask(3).ok());
  ASSERT_TRUE(pair.prefill.give("abort", Abort{2, 2}, kRollout).ok());
  const auto answers = pair.answers();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].request, 2U);
  EXPECT_EQ(answers[0].end, FinishReason::kCancelled);
  EXPECT_TRUE(pair.prefill.is_paused("request")) << "the third waits now";
}

TEST(Handover, AnImpossibleRequestIsRefusedAlsoAfterItWaited) {
  const auto engine = an_engine(1, 1);
  Pair pair(*engine, *engine);
  ASSERT_TRUE(pair.ask(1).ok());
  GenerateRequest impossible;
  impossible.request = 2;
  impossible.prompt_tokens.assign(5000, 2);
  EXPECT_FALSE(pair.prefill.give("request", impossible, kRollout).ok());
  ASSERT_THAT(pair.answers(), SizeIs(1));
  EXPECT_EQ(pair.answers()[0].end, FinishReason::kRefused);
}

/// The engine keeps a prompt that fails until it is taken over: Decode does not know before who
/// asked for it.
TEST(Handover, APromptWhoseStepFailsIsAnsweredToWhoAskedForIt) {
  const ScratchFolder scratch;
  ScriptedEngineOptions options;
  options.kv_blocks = 40;
  options.device_fault_file = scratch.path() / "fault";
  const std::unique_ptr<Engine> engine = *make_scripted_engine(options);
  Pair pair(*engine, *engine);
  ASSERT_TRUE(pair.ask(4).ok());
  write_text(options.device_fault_file, "full");
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(pair.decode.run_work().ok());
  EXPECT_THAT(pair.answers(), IsEmpty());
  pair.work_prefill();
  ASSERT_EQ(pair.num_underway(), 1U);
  pair.deliver();
  ASSERT_TRUE(pair.decode.run_work().ok());
  ASSERT_THAT(pair.answers(), SizeIs(1));
  EXPECT_EQ(pair.answers()[0].end, FinishReason::kFailed);
  EXPECT_EQ(pair.answers()[0].session, 74U);
  EXPECT_EQ(pair.answers()[0].attempt, 2U);
  EXPECT_EQ(pair.decode.emissions("completion")[0].options.origin, kRollout.origin);
  EXPECT_TRUE(pair.prefill.idle());
  EXPECT_TRUE(pair.decode.idle());
}

/// Requests, aborts (at both actors, or at one), steps, work calls, arrivals of PrefillDone and
/// ends of leases in any order.
class RandomHandover {
 public:
  explicit RandomHandover(uint64_t seed)
      : random_(seed),
        engine_(an_engine(static_cast<int32_t>(1 + random_.below(4)),
                          static_cast<int32_t>(1 + random_.below(6)))),
        pair_(*engine_, *engine_, Duration::seconds(2)) {}

  void run() {
    for (int i = 0; i < 400; ++i) turn(random_.below(9));
    for (int i = 0; i < 600; ++i)
      for (const uint64_t each : {3, 4, 5, 6, 7}) turn(each);
    std::map<uint64_t, int> num_answers;
    for (const auto& answer : pair_.answers()) ++num_answers[answer.request];
    EXPECT_EQ(num_answers.size(), next_);
    for (const auto& [request, count] : num_answers) EXPECT_EQ(count, 1) << "request " << request;
    for (const auto& sent : pair_.decode.emissions("completion")) {
      const uint64_t request = sent.payload.as<Completion>().request;
      if (aborted_at_prefill_.contains(request)) continue;
      EXPECT_EQ(sent.options.origin, kRollout.origin) << "request " << request;
    }
    expect_free(*engine_);
    EXPECT_TRUE(pair_.prefill.idle());
    EXPECT_TRUE(pair_.decode.idle());
  }

 private:
  void turn(uint64_t what) {
    switch (what) {
      case 0:
      case 1:
      case 2:
        if (next_ == 60) return;
        ASSERT_TRUE(pair_.ask(next_++).ok());
        return;
      case 3:
        ASSERT_TRUE(engine_->step().ok());
        return;
      case 4:
        return pair_.work_prefill();
      case 5:
        if (pair_.num_underway() > 0) pair_.deliver();
        return;
      case 6:
        ASSERT_TRUE(pair_.decode.run_work().ok());
        return;
      case 7:
        return pair_.advance(Duration::milliseconds(static_cast<int64_t>(random_.below(400))));
      default:
        return abort(random_.below(next_ + 1), random_.below(3));
    }
  }

  /// An abort may arrive before its request, at either actor first, and at one of them only.
  void abort(uint64_t request, uint64_t where) {
    const Abort message{request, 2};
    if (where == 0) aborted_at_prefill_.insert(request);
    if (where != 1) {
      ASSERT_TRUE(pair_.prefill.give("abort", message, kRollout).ok());
    }
    if (where != 0) {
      ASSERT_TRUE(pair_.decode.give("abort", message, kRollout).ok());
    }
  }

  RandomStream random_;
  std::unique_ptr<Engine> engine_;
  Pair pair_;
  uint64_t next_ = 0;
  std::set<uint64_t> aborted_at_prefill_;  // and not at Decode, which then knows no sender
};

TEST(Handover, EveryRequestHasOneCompletionInEveryOrder) {
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomHandover(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace primerl
