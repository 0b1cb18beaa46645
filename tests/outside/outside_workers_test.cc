#include "runtime/outside/outside_workers.h"

#include "graph/base/json.h"
#include "runtime/outside/worker_pipe.h"
#include "tests/outside/outside_story.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

/// A worker in shell: `script` is run for each line that it reads, with the call in $line and its
/// id in $id.
OutsidePool shell(const std::string& script, const std::string& hello = "") {
  OutsidePool pool;
  const std::string first =
      hello.empty() ? R"({"protocol": "primerl-graph 1", "concurrency": 4, "in_order": true})"
                    : hello;
  pool.command = {"/bin/sh", "-c",
                  "echo '" + first + "'\nwhile read -r line; do id=${line#*:}; id=${id%%,*}\n" +
                      script + "\ndone"};
  return pool;
}

struct OutsideWorkersStory : OutsideStory {};

TEST_F(OutsideWorkersStory, AProgramThatDoesNotExistIsAFailure) {
  OutsidePool pool;
  pool.command = {"no-such-program-here"};
  start(std::move(pool));
  EXPECT_THAT(failure(), HasSubstr("reward 'test': no program 'no-such-program-here' in PATH"));
}

TEST_F(OutsideWorkersStory, AFirstLineThatIsNoHelloIsAFailureAfterThreeStarts) {
  start(shell("", R"({"protocol": "primerl-graph 9"})"));
  const std::string why = failure();
  EXPECT_THAT(why, HasSubstr("3 workers in a row ended without an answer"));
  EXPECT_THAT(why, HasSubstr("'protocol' is 'primerl-graph 9'"));
}

TEST_F(OutsideWorkersStory, ConcurrencyIsRefusedOnePastItsLimit) {
  const auto hello = [](int64_t concurrency) {
    return read_hello(*parse_json(
        fmt::format(R"({{"protocol": "primerl-graph 1", "concurrency": {}}})", concurrency), ""));
  };
  EXPECT_TRUE(hello(kOutsideConcurrencyMax).ok());
  EXPECT_FALSE(hello(kOutsideConcurrencyMax + 1).ok());
  EXPECT_FALSE(hello(0).ok());
}

TEST_F(OutsideWorkersStory, AnswersComeWithTheIdOfTheirCall) {
  start(shell("echo \"{\\\"id\\\": $id, \\\"reward\\\": 1}\""));
  for (uint64_t id = 1; id <= 20; ++id) ask(id, "{}");
  for (uint64_t id = 20; id >= 1; --id) {
    const auto answer = answer_to(id);
    EXPECT_EQ(answer.end, OutsideEnd::kDone);
    EXPECT_THAT(answer.body, HasSubstr("\"reward\": 1"));
  }
}

TEST_F(OutsideWorkersStory, AWorkerThatHangsIsKilledAndOnlyItsCallFails) {
  OutsidePool pool = shell(
      "case $line in *hang*) sleep 1000;; *) echo \"{\\\"id\\\": $id, \\\"reward\\\": 1}\";; esac");
  pool.call_timeout = Duration::seconds(2) * kSlowness;
  start(std::move(pool));
  ask(1, R"({"a":"hang"})");
  ask(2, "{}");
  const auto late = answer_to(1);
  EXPECT_EQ(late.end, OutsideEnd::kFailed);
  EXPECT_THAT(late.body, HasSubstr("did not answer within"));
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
  EXPECT_THAT(log_text(), HasSubstr("worker 0 was killed: it did not answer"));
}

TEST_F(OutsideWorkersStory, AWorkerWithoutAFirstLineIsKilled) {
  OutsidePool pool;
  pool.command = {"/bin/sh", "-c", "sleep 1000"};
  pool.start_timeout = Duration::milliseconds(20);
  start(std::move(pool));
  EXPECT_THAT(failure(), HasSubstr("it wrote no first line within 20ms"));
}

TEST_F(OutsideWorkersStory, ACallThatAlwaysKillsItsWorkerIsLostAfterThreeAttempts) {
  start(shell("case $line in *die*) echo $line >> " + (folder / "seen").string() +
              "; exit 3;; *) echo \"{\\\"id\\\": $id, \\\"reward\\\": 1}\";; esac"));
  ask(1, R"({"a":"die"})");
  const auto lost = answer_to(1);
  EXPECT_EQ(lost.end, OutsideEnd::kLost);
  EXPECT_THAT(lost.body, HasSubstr("its worker ended 3 times: exited with code 3"));
  ask(2, "{}");
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
  std::ifstream seen(folder / "seen");
  std::string line;
  for (int attempt = 0; attempt < 3; ++attempt) {
    ASSERT_TRUE(std::getline(seen, line));
    EXPECT_THAT(line, HasSubstr(fmt::format("\"id\":1,\"attempt\":{}", attempt)));
  }
  EXPECT_FALSE(std::getline(seen, line));
}

TEST_F(OutsideWorkersStory, AWordThatIsNoAnswerAndALineThatIsTooLongEndTheWorker) {
  OutsidePool pool = shell(
      "case $line in *word*) echo hello;; *long*) head -c 2000 /dev/zero | tr '\\0' x;; "
      "*) echo \"{\\\"id\\\": $id, \\\"reward\\\": 1}\";; esac");
  pool.answer_bytes_max = 1024;
  start(std::move(pool));
  ask(1, R"({"a":"word"})");
  EXPECT_EQ(answer_to(1).end, OutsideEnd::kLost);
  EXPECT_THAT(log_text(), HasSubstr("it wrote 'hello', which is not a JSON object"));
  ask(2, R"({"a":"long"})");
  EXPECT_THAT(answer_to(2).body, HasSubstr("an answer is longer than 1024 bytes"));
  ask(3, "{}");
  EXPECT_EQ(answer_to(3).end, OutsideEnd::kDone);
}

TEST_F(OutsideWorkersStory, AnErrorOfTheWorkerFailsTheCallAlone) {
  start(shell("echo \"{\\\"id\\\": $id, \\\"error\\\": \\\"ill\\\"}\""));
  ask(1, "{}");
  EXPECT_EQ(answer_to(1).end, OutsideEnd::kFailed);
  EXPECT_EQ(answer_to(1).body, "ill");
}

TEST_F(OutsideWorkersStory, ASessionStaysWithItsWorkerAndNeedsItsHistoryWhenThatDies) {
  OutsidePool pool = shell(
      "case $line in *die*) exit 1;; *) echo \"{\\\"id\\\": $id, \\\"worker\\\": "
      "\\\"$PRIMERL_WORKER.$$\\\"}\";; esac");
  pool.num_workers = 3;
  start(std::move(pool));
  ask(1, "{}", 5);
  const auto worker_of = [this](uint64_t id) {
    const auto answer = parse_json(answer_to(id).body, "the answer");
    return answer.ok() ? *answer->get_string("worker") : answer.error().text();
  };
  const std::string first = worker_of(1);
  for (uint64_t id = 2; id < 12; ++id) {
    ask(id, "{}", 5, false);
    EXPECT_EQ(worker_of(id), first) << id;
  }
  ask(20, R"({"a":"die"})", 5, false);
  EXPECT_EQ(answer_to(20).end, OutsideEnd::kNeedsHistory);
  ask(21, "{}", 5, false);
  EXPECT_EQ(answer_to(21).end, OutsideEnd::kNeedsHistory);
  ask(22, "{}", 5, true, true);
  EXPECT_EQ(answer_to(22).end, OutsideEnd::kDone);
}

TEST_F(OutsideWorkersStory, AWorkerThatCannotReplayFailsTheTrajectory) {
  start(shell("echo \"{\\\"id\\\": $id}\"", R"({"protocol": "primerl-graph 1", "replay": false})"));
  ask(1, "{}", 5, true, true);
  EXPECT_EQ(answer_to(1).end, OutsideEnd::kFailed);
  EXPECT_THAT(answer_to(1).body, HasSubstr("\"replay\": false"));
  ask(2, "{}", 5);
  EXPECT_EQ(answer_to(2).end, OutsideEnd::kDone);
}

TEST_F(OutsideWorkersStory, CallsAreBounded) {
  OutsidePool pool;
  pool.command = {"/bin/sh", "-c", "sleep 1000"};
  start(std::move(pool));
  for (uint64_t id = 0; id < kOutsideCallsMax; ++id) ask(id, "{}");
  OutsideCall one_more;
  one_more.id = kOutsideCallsMax;
  one_more.body = "{}";
  EXPECT_EQ(outside->ask(std::move(one_more)).error().code(), Code::kExhausted);
}

TEST_F(OutsideWorkersStory, NothingIsAnsweredAfterStop) {
  start(shell("echo \"{\\\"id\\\": $id}\""));
  ask(1, "{}");
  outside->stop();
  ask(2, "{}");
  EXPECT_FALSE(outside->has_work());
  EXPECT_TRUE(outside->receive_answers().empty());
}

TEST_F(OutsideWorkersStory, WorkersEndWithTheirOwner) {
  start(shell("echo \"{\\\"id\\\": $id, \\\"pid\\\": $$}\""));
  ask(1, "{}");
  const auto pid = *parse_json(answer_to(1).body, "")->get_int("pid");
  outside.reset();
  EXPECT_NE(::kill(static_cast<pid_t>(pid), 0), 0);
}

TEST_F(OutsideWorkersStory, LinesOfStderrGoToTheLogUpToALimit) {
  start(
      shell("i=0; while [ $i -lt 300 ]; do echo line $i >&2; i=$((i+1)); done; "
            "echo \"{\\\"id\\\": $id}\""));
  ask(1, "{}");
  (void)answer_to(1);
  ask(2, "{}");
  (void)answer_to(2);
  EXPECT_THAT(log_text(), HasSubstr("reward 'test', worker 0: line 99"));
  EXPECT_THAT(log_text(), ::testing::Not(HasSubstr("line 100\n")));
}

}  // namespace
}  // namespace primerl
