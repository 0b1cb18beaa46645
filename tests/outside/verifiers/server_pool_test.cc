#include "runtime/outside/verifiers/server_pool.h"

#include <gmock/gmock.h>

#include "graph/base/random.h"
#include "tests/outside/verifiers/fake_sockets.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// A pool that joins a server, and a virtual clock.
struct ServerPoolStory : ::testing::Test {
  void join(VerifiersDialect spoken) {
    dialect = spoken;
    pool_spec.name = "environment 'test'";
    pool_spec.kind = OutsidePoolKind::kVerifiers;
    pool_spec.verifiers.address = kAddress;
    server = std::make_unique<StandInServer>(spoken);
    sockets.start(kAddress, *server);
    pool.emplace(
        pool_spec, sockets, [this] { return fmt::format("{:032x}", ++num_ids); },
        [this](OutsideAnswer answer) {
          EXPECT_FALSE(answers.contains(answer.id)) << "answered twice";
          answers[answer.id] = std::move(answer);
        },
        [](std::string_view) {});
  }
  void turn() {
    if (fault.ok()) fault = pool->start_missing(now);
    pool->turn(now);
  }
  void pass(Duration time) {
    const Time until = now + time;
    turn();
    turn();
    for (auto next = pool->next_deadline(); fault.ok() && next && *next <= until;
         next = pool->next_deadline()) {
      now = std::max(now, *next);
      turn();
    }
    now = until;
    turn();
  }
  void ask(uint64_t id, const std::string& body, uint32_t attempt = 0) {
    OutsideCall call;
    call.id = id;
    call.attempt = attempt;
    call.session = id + 1;
    call.is_whole = false;
    call.body = body;
    pool->ask(std::move(call), now);
  }
  void run(uint64_t id) { ask(id, stand_in_call(dialect)); }

  VerifiersDialect dialect = VerifiersDialect::kW1c;
  OutsidePool pool_spec;
  FakeSockets sockets;
  std::unique_ptr<StandInServer> server;
  std::optional<ServerPool> pool;
  std::map<uint64_t, OutsideAnswer> answers;
  Status fault;
  Time now;
  int num_ids = 0;
};

TEST_F(ServerPoolStory, RunsWaitUntilTheServerIsKnown) {
  join(VerifiersDialect::kW1c);
  run(1);
  EXPECT_TRUE(answers.empty());
  pass(Duration::seconds(1));
  EXPECT_EQ(answers[1].end, OutsideEnd::kDone);
  EXPECT_THAT(pool->describe(), HasSubstr("w1c at tcp://127.0.0.1:5000, 0 runs"));
}

TEST_F(ServerPoolStory, RunsBeyondTheConcurrencyWait) {
  pool_spec.verifiers.concurrency = 3;
  join(VerifiersDialect::kW2);
  pass(Duration::seconds(1));
  server->is_slow = true;
  for (uint64_t id = 1; id <= 7; ++id) run(id);
  EXPECT_EQ(server->runs.size(), 3U);
  EXPECT_THAT(pool->describe(), HasSubstr("4 runs wait"));
  for (int i = 0; i < 3; ++i) {
    sockets.finish_runs(kAddress);
    pass(Duration());
  }
  EXPECT_EQ(answers.size(), 7U);
}

TEST_F(ServerPoolStory, ARunOfAnEarlierProgramIsLostWithoutBeingSent) {
  join(VerifiersDialect::kW1c);
  pass(Duration::seconds(1));
  ask(1, stand_in_call(dialect), 1);
  EXPECT_EQ(answers[1].end, OutsideEnd::kLost);
  EXPECT_TRUE(server->runs.empty());
}

TEST_F(ServerPoolStory, AWaitingRunAndARunningOneAreCancelled) {
  pool_spec.verifiers.concurrency = 1;
  join(VerifiersDialect::kW1c);
  pass(Duration::seconds(1));
  server->is_slow = true;
  run(1);
  run(2);
  pool->forget(3);  // session of run 2
  pool->forget(2);
  pool->forget(2);
  EXPECT_EQ(answers[1].body, "cancelled");
  EXPECT_EQ(answers[2].body, "cancelled");
  EXPECT_EQ(server->runs.size(), 1U);
  EXPECT_EQ(server->cancelled.size(), 1U);
}

TEST_F(ServerPoolStory, ATaskNeedsAProcessThatGivesTasks) {
  join(VerifiersDialect::kW1a);
  ask(1, R"({"call":"task","ordinal":7})");
  EXPECT_EQ(answers[1].end, OutsideEnd::kFailed);
  EXPECT_EQ(answers[1].body, "no process here gives tasks");
}

TEST_F(ServerPoolStory, TheDialectOfTheServerCanBeAsked) {
  join(VerifiersDialect::kW1b);
  ask(1, R"({"call":"server"})");
  EXPECT_TRUE(answers.empty());
  pass(Duration::seconds(1));
  EXPECT_EQ(answers[1].body, R"({"dialect":"w1b","address":"tcp://127.0.0.1:5000"})");
}

TEST_F(ServerPoolStory, AServerThatNeverAnswersIsAnErrorOfThePool) {
  pool_spec.start_timeout = Duration::seconds(20);
  join(VerifiersDialect::kW2);
  sockets.kill(kAddress);
  pass(Duration::milliseconds(19'999));
  EXPECT_TRUE(fault.ok());
  pass(Duration::milliseconds(2));
  EXPECT_THAT(fault.error().text(), HasSubstr("environment 'test': the server at "
                                              "'tcp://127.0.0.1:5000' did not answer within 20s"));
  EXPECT_THAT(fault.error().text(), HasSubstr("nothing listens there"));
}

TEST_F(ServerPoolStory, AServerThatOnlyBreaksIsGivenUpAfterSixteenTimes) {
  join(VerifiersDialect::kW1c);
  int num_broken = 0;
  for (; num_broken < 40 && fault.ok(); ++num_broken) {
    pass(Duration::seconds(10));
    sockets.kill(kAddress);
    turn();
    sockets.start(kAddress, *server);
    turn();
  }
  EXPECT_EQ(num_broken, kFruitlessStartsMax);
  EXPECT_THAT(fault.error().message(), HasSubstr("broke 16 times in a row without a good run"));
}

// A server is killed every now and then, at a random step of 2,000 runs.
TEST_F(ServerPoolStory, EveryRunEndsOnceThoughItsServerIsKilledAgainAndAgain) {
  for (const VerifiersDialect each : {VerifiersDialect::kW0, VerifiersDialect::kW1a,
                                      VerifiersDialect::kW1c, VerifiersDialect::kW2}) {
    SCOPED_TRACE(to_string(each));
    answers.clear();
    join(each);
    server->is_slow = true;
    RandomStream random(static_cast<uint64_t>(each) + 1);
    uint64_t next_id = 1;
    int num_killed = 0;
    while (answers.size() < 2000) {
      const uint64_t step = random.below(100);
      if (step < 60 && next_id <= 2000) run(next_id++);
      if (step >= 60 && step < 80)
        pass(Duration::milliseconds(static_cast<int64_t>(random.below(900))));
      if (step >= 80 && step < 95) sockets.finish_runs(kAddress);
      if (step >= 95 && step < 98 && next_id > 1) pool->forget(random.below(next_id) + 1);
      if (step == 99) {
        sockets.kill(kAddress);
        if (random.below(2) == 0) turn();
        sockets.start(kAddress, *server);
        (void)server->finish_runs();  // a killed server has forgotten them
        ++num_killed;
      }
      if (!fault.ok()) break;
    }
    ASSERT_TRUE(fault.ok()) << fault.error().text();
    std::map<OutsideEnd, int> ends;
    for (const auto& [id, answer] : answers) ++ends[answer.end];
    EXPECT_GT(num_killed, 10);
    EXPECT_GT(ends[OutsideEnd::kDone], 500);
    EXPECT_GT(ends[OutsideEnd::kLost], 20);
    pool.reset();
    EXPECT_EQ(sockets.num_open(), 0U);
  }
}

}  // namespace
}  // namespace primerl
