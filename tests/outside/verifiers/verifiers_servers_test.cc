// The client with real sockets, and with real processes that say where their server listens.
#include "runtime/outside/verifiers/verifiers_servers.h"

#include <csignal>

#include "graph/base/json.h"
#include "tests/outside/outside_story.h"
#include "tests/outside/verifiers/zmq_stand_in.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// What verifiers_server.py writes and answers, in shell. `$$` is the process that dies.
OutsidePool started(const std::string& address) {
  OutsidePool pool;
  pool.kind = OutsidePoolKind::kVerifiers;
  pool.command = {
      "/bin/sh", "-c",
      R"(echo '{"protocol": "primerl-graph 1", "concurrency": 8, "address": ")" + address + R"("}'
while read -r line; do id=${line#*:}; id=${id%%,*}
echo "{\"id\": $id, \"data\": {\"task_data\": {}}, \"prompt\": \"x\", \"pid\": $$}"; done)"};
  return pool;
}

OutsidePool joined(const std::string& address) {
  OutsidePool pool;
  pool.kind = OutsidePoolKind::kVerifiers;
  pool.verifiers.address = address;
  return pool;
}

struct VerifiersServersStory : OutsideStory {
  void begin(OutsidePool pool, VerifiersDialect spoken, bool is_pinned = true) {
    dialect = spoken;
    pool.name = "environment 'test'";
    if (is_pinned) pool.verifiers.protocol = to_string(spoken);
    VerifiersServersSetup setup;
    setup.spec.pools = {OutsidePool(), std::move(pool)};  // one of another kind comes first
    setup.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex);
      log.emplace_back(line);
    };
    use(make_verifiers_servers(std::move(setup)));
  }
  void ask(uint64_t id, const std::string& body, bool is_run = true) {
    OutsideCall call;
    call.id = id;
    call.pool = 1;
    call.session = is_run ? id + 1 : 0;
    call.is_whole = !is_run;
    call.body = body;
    ASSERT_TRUE(outside->ask(std::move(call)).ok());
  }
  void run(uint64_t id, const std::string& fault = "") { ask(id, stand_in_call(dialect, fault)); }
  /// Asks for a task; the process that answered.
  pid_t process_of_task(uint64_t id) {
    ask(id, R"({"call":"task","ordinal":0})", false);
    return static_cast<pid_t>(parse_json(answer_to(id).body, "the task")->get_int("pid").value());
  }
  void wait_for_runs(ZmqStandIn& server, size_t count) {
    const auto until = deadline_after(kPatience);
    for (size_t seen = 0; seen < count && std::chrono::steady_clock::now() < until;
         std::this_thread::yield())
      server.with([&](StandInServer& each) { seen = each.runs.size(); });
  }
  VerifiersDialect dialect = VerifiersDialect::kW1c;
};

TEST_F(VerifiersServersStory, AJoinedServerOfEachDialectRunsRollouts) {
  for (const VerifiersDialect each :
       {VerifiersDialect::kW0, VerifiersDialect::kW1a, VerifiersDialect::kW1b,
        VerifiersDialect::kW1c, VerifiersDialect::kW2}) {
    SCOPED_TRACE(to_string(each));
    ZmqStandIn server(each);
    // W0 is pinned, because three silences last 6 s.
    begin(joined(server.address()), each, each == VerifiersDialect::kW0);
    known.clear();
    for (uint64_t id = 1; id <= 50; ++id) run(id);
    for (uint64_t id = 1; id <= 50; ++id) EXPECT_EQ(answer_to(id).end, OutsideEnd::kDone);
    EXPECT_THAT(log_text(), HasSubstr(fmt::format("speaks {}", to_string(each))));
    server.with([](StandInServer& stand_in) { EXPECT_FALSE(stand_in.is_killed); });
    outside.reset();
  }
}

TEST_F(VerifiersServersStory, AStartedServerGivesTasksAndRunsRollouts) {
  ZmqStandIn server(VerifiersDialect::kW2);
  begin(started(server.address()), VerifiersDialect::kW2);
  EXPECT_GT(process_of_task(1), 0);
  run(2);
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
  EXPECT_THAT(outside->describe(), HasSubstr("w2 at tcp://127.0.0.1:"));
}

TEST_F(VerifiersServersStory, AFirstLineWithoutAnAddressEndsTheServer) {
  OutsidePool pool = started("");
  begin(std::move(pool), VerifiersDialect::kW2);
  EXPECT_THAT(failure(), HasSubstr("its first line: 'address' is empty"));
}

TEST_F(VerifiersServersStory, RunsOfAKilledServerAreLostAndTheNextServerRunsOthers) {
  ZmqStandIn server(VerifiersDialect::kW2);
  begin(started(server.address()), VerifiersDialect::kW2);
  std::set<pid_t> processes;
  for (uint64_t round = 0; round < 3; ++round) {
    const uint64_t id = round * 10;
    const pid_t process = process_of_task(id);
    EXPECT_TRUE(processes.insert(process).second) << "the same process again";
    server.with([](StandInServer& each) {
      each.runs.clear();
      each.is_slow = true;
    });
    run(id + 1);
    run(id + 2);
    wait_for_runs(server, 2);
    ::kill(process, SIGKILL);
    EXPECT_EQ(answer_to(id + 1).end, OutsideEnd::kLost);
    EXPECT_EQ(answer_to(id + 2).end, OutsideEnd::kLost);
    EXPECT_THAT(answer_to(id + 2).body, HasSubstr("was killed by signal 9"));
    server.with([](StandInServer& each) {
      (void)each.finish_runs();
      each.is_slow = false;
    });
    run(id + 3);
    EXPECT_EQ(answer_to(id + 3).end, OutsideEnd::kDone);
  }
}

TEST_F(VerifiersServersStory, ASilentServerIsKilledAndAnotherIsStarted) {
  ZmqStandIn server(VerifiersDialect::kW1c);
  OutsidePool pool = started(server.address());
  pool.verifiers.health_timeout = Duration::milliseconds(400) * kSlowness;
  begin(std::move(pool), VerifiersDialect::kW1c);
  const pid_t first = process_of_task(1);
  run(2);
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
  server.with([](StandInServer& each) { each.is_silent = true; });
  run(3);
  EXPECT_EQ(answer_to(3).end, OutsideEnd::kLost);
  EXPECT_THAT(answer_to(3).body, HasSubstr("it was silent for"));
  server.with([](StandInServer& each) { each.is_silent = false; });
  run(4);
  EXPECT_EQ(answer_to(4).end, OutsideEnd::kDone);
  EXPECT_NE(process_of_task(5), first);
}

TEST_F(VerifiersServersStory, ABrokenConnectionToAJoinedServerLosesItsRunsOnly) {
  ZmqStandIn server(VerifiersDialect::kW1c);
  begin(joined(server.address()), VerifiersDialect::kW1c);
  server.with([](StandInServer& each) { each.is_slow = true; });
  run(1);
  wait_for_runs(server, 1);
  server.break_connections();
  EXPECT_EQ(answer_to(1).end, OutsideEnd::kLost);
  EXPECT_THAT(answer_to(1).body, HasSubstr("the connection broke"));
  server.with([](StandInServer& each) {
    (void)each.finish_runs();
    each.is_slow = false;
  });
  run(2);
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
}

TEST_F(VerifiersServersStory, FaultsOfRunsFailThoseRunsAlone) {
  ZmqStandIn server(VerifiersDialect::kW2);
  begin(joined(server.address()), VerifiersDialect::kW2);
  uint64_t id = 0;
  for (const char* fault : {"", "garbage", "", "five_frames", "bad_counts", "twice", "refuse", ""})
    run(++id, fault);
  std::string ends;
  for (uint64_t each = 1; each <= id; ++each)
    ends += answer_to(each).end == OutsideEnd::kDone ? "+" : "-";
  EXPECT_EQ(ends, "+-+--+-+");
}

TEST_F(VerifiersServersStory, ForgetCancelsARunAtTheServer) {
  ZmqStandIn server(VerifiersDialect::kW2);
  begin(joined(server.address()), VerifiersDialect::kW2);
  server.with([](StandInServer& each) { each.is_slow = true; });
  run(1);
  wait_for_runs(server, 1);
  outside->forget(1, 2);
  EXPECT_EQ(answer_to(1).end, OutsideEnd::kFailed);
  EXPECT_EQ(answer_to(1).body, "cancelled");
  server.with([](StandInServer& each) { each.is_slow = false; });
  run(2);
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
  server.with([](StandInServer& each) { EXPECT_EQ(each.cancelled.size(), 1U); });
}

TEST_F(VerifiersServersStory, AnAddressWithoutAFormIsAnError) {
  begin(joined("nonsense"), VerifiersDialect::kW2);
  EXPECT_THAT(failure(), HasSubstr("an address has the form 'tcp://host:port'"));
}

TEST_F(VerifiersServersStory, ServersEndWithTheirOwner) {
  ZmqStandIn server(VerifiersDialect::kW2);
  begin(started(server.address()), VerifiersDialect::kW2);
  const pid_t process = process_of_task(1);
  outside.reset();
  EXPECT_NE(::kill(process, 0), 0);
}

}  // namespace
}  // namespace primerl
