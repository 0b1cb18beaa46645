#include "runtime/outside/verifiers/server_link.h"

#include <gmock/gmock.h>

#include "graph/base/random.h"
#include "runtime/outside/verifiers/msgpack_json.h"
#include "tests/outside/verifiers/fake_sockets.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<VerifiersDialect> kDialects = {VerifiersDialect::kW0, VerifiersDialect::kW1a,
                                                 VerifiersDialect::kW1b, VerifiersDialect::kW1c,
                                                 VerifiersDialect::kW2};

/// A link, a server and a virtual clock.
struct Stage {
  explicit Stage(VerifiersDialect spoken, ServerLinkOptions chosen = {})
      : dialect(spoken), server(spoken) {
    chosen.name = "environment 'test', server 0";
    options = chosen;
    link = std::make_unique<ServerLink>(
        options, sockets, [this] { return fmt::format("{:032x}", ++num_ids); },
        [this](OutsideAnswer answer) {
          EXPECT_FALSE(answers.contains(answer.id)) << "answered twice";
          answers[answer.id] = std::move(answer);
        },
        [this](std::string_view line) { log.emplace_back(line); });
    sockets.start(kAddress, server);
    link->open(kAddress, now);
    pass(Duration::seconds(10));
    EXPECT_TRUE(link->has_space()) << to_string(dialect);
  }
  void pass(Duration time) {
    const Time until = now + time;
    link->turn(now);
    link->turn(now);
    for (auto next = link->next_deadline(); next && *next <= until; next = link->next_deadline()) {
      now = std::max(now, *next);
      link->turn(now);
    }
    now = until;
    link->turn(now);
  }
  void run(uint64_t id, const std::string& fault = "", int64_t members = 1) {
    OutsideCall call;
    call.id = id;
    call.session = id + 1;
    call.is_whole = false;
    call.body = stand_in_call(dialect, fault, members);
    link->run(std::move(call), now);
    link->turn(now);
  }
  std::string end_of(uint64_t id) {
    if (!answers.contains(id)) return "none";
    static constexpr const char* kEnds[] = {"done", "failed", "lost", "needs history"};
    return fmt::format("{}: {}", kEnds[static_cast<size_t>(answers[id].end)], answers[id].body);
  }

  const VerifiersDialect dialect;
  StandInServer server;
  FakeSockets sockets;
  ServerLinkOptions options;
  std::unique_ptr<ServerLink> link;
  std::map<uint64_t, OutsideAnswer> answers;
  std::vector<std::string> log;
  Time now;
  int num_ids = 0;
};

TEST(ServerLink, RunsARolloutInEveryDialect) {
  for (const VerifiersDialect dialect : kDialects) {
    SCOPED_TRACE(to_string(dialect));
    Stage stage(dialect);
    stage.run(1);
    ASSERT_EQ(stage.answers[1].end, OutsideEnd::kDone) << stage.end_of(1);
    const Json answer = *parse_json(stage.answers[1].body, "");
    const Json& member = answer.find("members")->as_array().at(0);
    EXPECT_EQ(member.get_string("end").value(), "done");
    EXPECT_EQ(member.get_double("reward").value(), 0.5);
    EXPECT_EQ(member.find("branches")->dump(), R"([{"tokens":[1,2,3,4],"sampled":[[2,4]]}])");
    EXPECT_THAT(stage.log, ::testing::Contains(HasSubstr(to_string(dialect))));
  }
}

struct FaultStory {
  std::string fault, reason;
  std::vector<VerifiersDialect> dialects;
};

TEST(ServerLink, AFaultOfARunFailsThatRunAlone) {
  const std::vector<FaultStory> stories = {
      {"one_frame", "has 1 frames", kDialects},
      {"five_frames", "has 5 frames", kDialects},
      {"garbage", "not msgpack", kDialects},
      {"refuse", "the server says: ValueError: no such task", kDialects},
      {"wrong_members",
       "",
       {VerifiersDialect::kW0, VerifiersDialect::kW1a, VerifiersDialect::kW1c,
        VerifiersDialect::kW2}},
      {"bad_counts", "have 2 nodes, the reply counts 3", {VerifiersDialect::kW2}}};
  for (const FaultStory& story : stories)
    for (const VerifiersDialect dialect : story.dialects) {
      SCOPED_TRACE(fmt::format("{} {}", story.fault, to_string(dialect)));
      Stage stage(dialect);
      stage.server.is_slow = true;
      stage.run(1);
      stage.run(2, story.fault);
      stage.run(3);
      stage.sockets.finish_runs(kAddress);
      stage.pass(Duration());
      EXPECT_EQ(stage.answers[1].end, OutsideEnd::kDone);
      EXPECT_EQ(stage.answers[2].end, OutsideEnd::kFailed);
      EXPECT_THAT(stage.answers[2].body, HasSubstr(story.reason));
      EXPECT_EQ(stage.answers[3].end, OutsideEnd::kDone);
      EXPECT_EQ(stage.link->num_runs(), 0U);
      EXPECT_FALSE(stage.link->fault());
    }
}

TEST(ServerLink, AMemberThatTheServerCallsFailedHasNoReward) {
  for (const VerifiersDialect dialect : kDialects)
    for (const char* fault : {"not_ok", "bad_mask"}) {
      SCOPED_TRACE(fmt::format("{} {}", fault, to_string(dialect)));
      Stage stage(dialect);
      stage.run(1, fault);
      ASSERT_EQ(stage.answers[1].end, OutsideEnd::kDone);
      const Json answer = *parse_json(stage.answers[1].body, "");
      const Json& member = answer.find("members")->as_array().at(0);
      EXPECT_EQ(member.get_string("end").value(), "failed");
      EXPECT_EQ(member.find("reward"), nullptr);
      EXPECT_NE(member.get_string("error").value(), "");
    }
}

TEST(ServerLink, RoutingThatDoesNotCoverItsTokensIsAsIfItWereAbsent) {
  for (const VerifiersDialect dialect : kDialects) {
    Stage stage(dialect);
    stage.run(1);
    stage.run(2, "short_routing");
    EXPECT_EQ(stage.answers[2].body, stage.answers[1].body) << to_string(dialect);
  }
}

TEST(ServerLink, ASecondAnswerIsCountedAndDropped) {
  for (const VerifiersDialect dialect : kDialects) {
    Stage stage(dialect);
    stage.run(1, "twice");
    stage.pass(Duration::seconds(1));
    EXPECT_EQ(stage.answers[1].end, OutsideEnd::kDone);
    EXPECT_EQ(stage.link->counts().late, 1U) << to_string(dialect);
  }
}

TEST(ServerLink, ARunThatGetsNoAnswerEndsAtItsDeadlineAndIsCancelled) {
  for (const VerifiersDialect dialect : kDialects) {
    SCOPED_TRACE(to_string(dialect));
    ServerLinkOptions options;
    options.run_timeout = Duration::seconds(100);
    Stage stage(dialect, options);
    stage.run(1, "silent");
    stage.pass(Duration::milliseconds(99'999));
    EXPECT_EQ(stage.end_of(1), "none");
    stage.pass(Duration::milliseconds(1));
    EXPECT_EQ(stage.end_of(1), "failed: it did not end within 100s");
    const bool can_cancel = dialect != VerifiersDialect::kW1a && dialect != VerifiersDialect::kW1b;
    EXPECT_EQ(stage.server.cancelled.size(), can_cancel ? 1U : 0U);
    EXPECT_EQ(stage.link->counts().abandoned, can_cancel ? 0U : 1U);
    EXPECT_FALSE(stage.link->fault());
  }
}

TEST(ServerLink, ACallMayShortenItsTime) {
  Stage stage(VerifiersDialect::kW2);
  OutsideCall call;
  call.id = 1;
  call.session = 2;
  Json body = *parse_json(stand_in_call(VerifiersDialect::kW2, "silent"), "");
  call.body = body.set("deadline_ms", 1500).dump();
  stage.link->run(std::move(call), stage.now);
  stage.pass(Duration::milliseconds(1500));
  EXPECT_EQ(stage.end_of(1), "failed: it did not end within 1500ms");
}

TEST(ServerLink, ACancelledRunIsAnsweredOnceAndItsLateAnswerIsDropped) {
  for (const VerifiersDialect dialect : kDialects) {
    SCOPED_TRACE(to_string(dialect));
    Stage stage(dialect);
    stage.server.is_slow = true;
    stage.run(1);
    EXPECT_FALSE(stage.link->cancel(99));
    EXPECT_TRUE(stage.link->cancel(2));
    EXPECT_FALSE(stage.link->cancel(2));
    EXPECT_EQ(stage.end_of(1), "failed: cancelled");
    stage.sockets.finish_runs(kAddress);
    stage.pass(Duration::seconds(1));
    EXPECT_EQ(stage.link->counts().malformed, 0U);
    EXPECT_GE(stage.link->counts().late, 1U);
  }
}

TEST(ServerLink, RunsOfABrokenConnectionAreLostAtOnce) {
  for (const VerifiersDialect dialect : kDialects) {
    Stage stage(dialect);
    stage.server.is_slow = true;
    stage.run(1);
    stage.run(2);
    stage.sockets.kill(kAddress);
    stage.pass(Duration());
    ASSERT_TRUE(stage.link->fault());
    EXPECT_EQ(stage.link->fault()->code(), Code::kUnavailable);
    EXPECT_FALSE(stage.link->has_space());
    stage.link->close("the server was killed");
    EXPECT_EQ(stage.end_of(1), "lost: the server was killed");
    EXPECT_EQ(stage.end_of(2), "lost: the server was killed");
    EXPECT_EQ(stage.sockets.num_open(), 0U);
  }
}

TEST(ServerLink, AnAnswerThatArrivedBeforeTheConnectionBrokeCounts) {
  Stage stage(VerifiersDialect::kW1c);
  stage.server.is_slow = true;
  stage.run(1);
  stage.sockets.finish_runs(kAddress);
  stage.sockets.kill(kAddress);
  stage.pass(Duration());
  EXPECT_EQ(stage.answers[1].end, OutsideEnd::kDone);
}

TEST(ServerLink, ASilentServerIsGivenUpAtTheLimitOfItsSilence) {
  for (const VerifiersDialect dialect : kDialects) {
    Stage stage(dialect);
    stage.pass(Duration::seconds(300));
    EXPECT_FALSE(stage.link->fault()) << "it answers health requests";
    EXPECT_GT(stage.server.num_health, 50);
    stage.server.is_silent = true;
    stage.pass(Duration::seconds(24));
    EXPECT_FALSE(stage.link->fault());
    stage.pass(Duration::seconds(6));
    ASSERT_TRUE(stage.link->fault());
    EXPECT_THAT(stage.link->fault()->message(), HasSubstr("silent for 30s"));
  }
}

TEST(ServerLink, APoolWithoutWorkersIsGivenUp) {
  Stage stage(VerifiersDialect::kW1c);
  stage.server.has_workers = false;
  stage.pass(Duration::seconds(5));
  ASSERT_TRUE(stage.link->fault());
  EXPECT_THAT(stage.link->fault()->message(), HasSubstr("no worker is left"));
}

TEST(ServerLink, AMessageOfNoRunIsCounted) {
  Stage stage(VerifiersDialect::kW2);
  stage.sockets.push(kAddress, {"unknown"});
  stage.sockets.push(kAddress, {"unknown", "reply", "x"});
  stage.pass(Duration());
  EXPECT_EQ(stage.link->counts().malformed, 1U);
  EXPECT_EQ(stage.link->counts().late, 1U);
  EXPECT_FALSE(stage.link->fault());
}

TEST(ServerLink, AnAnswerBeyondItsBytesFailsItsRun) {
  ServerLinkOptions options;
  Stage probe(VerifiersDialect::kW2);
  probe.run(1);
  // The bytes of all frames of the answer, found by bisection of the limit.
  int64_t low = 1, high = 4096;
  while (low < high) {
    options.answer_bytes_max = (low + high) / 2;
    Stage stage(VerifiersDialect::kW2, options);
    stage.run(1);
    if (stage.answers[1].end == OutsideEnd::kDone)
      high = options.answer_bytes_max;
    else
      low = options.answer_bytes_max + 1;
  }
  options.answer_bytes_max = low - 1;
  Stage stage(VerifiersDialect::kW2, options);
  stage.run(1);
  EXPECT_THAT(stage.end_of(1), HasSubstr(fmt::format("longer than {} bytes", low - 1)));
  EXPECT_GT(low, 300);
}

TEST(ServerLink, ValuesOfAllMessagesOfAnAnswerAreBoundedTogether) {
  const auto end_with = [](size_t values_max) {
    ServerLinkOptions options;
    options.answer_limits.values_max = values_max;
    Stage stage(VerifiersDialect::kW2, options);
    stage.run(1);
    return stage.answers[1].end;
  };
  size_t least = 1;
  while (least < 500 && end_with(least) != OutsideEnd::kDone) ++least;
  // More than any one of the three messages has.
  EXPECT_GT(least, 60U);
  EXPECT_LT(least, 500U);
  EXPECT_EQ(end_with(least - 1), OutsideEnd::kFailed);
}

TEST(ServerLink, RunsAreBoundedByTheConcurrency) {
  ServerLinkOptions options;
  options.concurrency = 2;
  Stage stage(VerifiersDialect::kW1c, options);
  stage.server.is_slow = true;
  stage.run(1);
  EXPECT_TRUE(stage.link->has_space());
  stage.run(2);
  EXPECT_FALSE(stage.link->has_space());
  stage.sockets.finish_runs(kAddress);
  stage.pass(Duration());
  EXPECT_TRUE(stage.link->has_space());
}

TEST(ServerLink, ACallThatTheDialectCannotDoFailsWithoutBeingSent) {
  Stage stage(VerifiersDialect::kW2);
  stage.run(1, "", 2);
  EXPECT_THAT(stage.end_of(1), HasSubstr("runs one member a call, not 2"));
  EXPECT_THAT(stage.server.runs, IsEmpty());
}

}  // namespace
}  // namespace primerl
