// A run with a gateway: HTTP clients get completions while the run trains, its record has their
// requests and no secret, and a replay opens no socket.
#include <gmock/gmock.h>

#include <csignal>

#include "tests/base/raw_client.h"
#include "tests/cli/gateway_graph.h"
#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

namespace fs = std::filesystem;

constexpr std::string_view kKey = "key-0123456789abcdef";
constexpr std::string_view kSecret = "secret-of-a-header-that-no-file-may-have";

struct GatewayRun : ::testing::Test {
  GatewayRun() {
    write_text(scratch.path() / "graph.toml",
               gateway_graph("listen = \"127.0.0.1:0\"\nkeys_file = \"keys\"\n"));
    write_text(scratch.path() / "keys", fmt::format("{} main\n", kKey));
  }
  std::string graph() const { return (scratch.path() / "graph.toml").string(); }
  std::vector<std::string> words(std::vector<std::string> more = {}) const {
    std::vector<std::string> all{"primerl-graph", "run", graph(), "--out", folder.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  /// The port that the logs name, other than `old`; 0 if there is none in time.
  uint16_t port(uint16_t old = 0) const {
    uint16_t found = 0;
    (void)wait_until([&] {
      for (const auto& entry : fs::recursive_directory_iterator(folder / "logs")) {
        const auto text = read_text_file(entry.path());
        if (!text.ok()) continue;
        const std::string mark = "listens on http://127.0.0.1:";
        for (size_t at = text->find(mark); at != std::string::npos; at = text->find(mark, at)) {
          at += mark.size();
          const auto named = static_cast<uint16_t>(std::atoi(text->c_str() + at));
          if (named != old) found = named;
        }
      }
      return found != 0;
    });
    return found;
  }
  static std::string post(std::string_view path, std::string_view body, std::string_view session) {
    return fmt::format(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nX-Secret: {}\r\n"
        "X-Session-ID: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        path, kKey, kSecret, session, body.size(), body);
  }
  /// Files below the run folder that contain `text`.
  std::vector<std::string> files_with(std::string_view text) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      if (!entry.is_regular_file()) continue;
      const auto content = read_text_file(entry.path());
      if (content.ok() && content->find(text) != std::string::npos)
        found.push_back(entry.path().string());
    }
    return found;
  }

  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
};

TEST_F(GatewayRun, ClientsGetCompletionsAndTheReplayHasTheSameSteps) {
  Program run(words({"--max-steps", "1000000000"}));
  ASSERT_TRUE(run.wait_until_said("reward"));
  const uint16_t at = port();
  ASSERT_NE(at, 0);
  EXPECT_THAT(RawClient(at).say("POST /x HTTP/1.1\r\nHost: localhost\r\n\r\n").hear_all(),
              StartsWith("HTTP/1.1 401"));
  constexpr std::string_view kBody =
      R"({"model":"main","token_ids":[5,6,7],"sampling_params":{"max_tokens":4}})";
  for (int i = 0; i < 20; ++i)
    EXPECT_THAT(RawClient(at)
                    .say(post("/inference/v1/generate", kBody, fmt::format("session-{}", i)))
                    .hear_all(),
                AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\"token\":\"token_id:"),
                      HasSubstr("\"prompt_tokens\":3")));
  constexpr std::string_view kEverything =
      R"({"token_ids":[5,6,7],"return_token_ids":true,"sampling_params":{"max_tokens":4,"n":2,)"
      R"("seed":3,"logprobs":3,"prompt_logprobs":1,"extra_args":{"prl_compact_logprobs":true}}})";
  EXPECT_THAT(RawClient(at).say(post("/inference/v1/generate", kEverything, "all")).hear_all(),
              AllOf(StartsWith("HTTP/1.1 200"), HasSubstr(R"("compact_logprobs":{"data":")"),
                    HasSubstr(R"("index":1)"), HasSubstr(R"("prompt_logprobs":[null,{"6":)"),
                    HasSubstr(R"("prompt_token_ids":[5,6,7])"), Not(HasSubstr("\"created\":0"))));
  const auto of_engine = [&](int index) {
    return fmt::format(
        "POST /inference/v1/generate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n"
        "X-data-parallel-rank: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
        kKey, index, kBody.size(), kBody);
  };
  EXPECT_THAT(RawClient(at).say(of_engine(0)).hear_all(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(RawClient(at).say(of_engine(9)).hear_all(),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("asks for engine 9")));
  // This one goes away before its reply.
  RawClient(at).say(post("/inference/v1/generate", kBody, "gone"));
  EXPECT_THAT(RawClient(at).say(post("/tokenize", R"({"prompt":"abc"})", "s")).hear_all(),
              HasSubstr("\"count\":3"));
  EXPECT_THAT(RawClient(at).say(post("/inference/v1/generate", "{}", "s")).hear_all(),
              AllOf(StartsWith("HTTP/1.1 400"), HasSubstr("no 'token_ids'")));
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  EXPECT_THAT(files_with(kKey), IsEmpty());
  EXPECT_THAT(files_with(kSecret), IsEmpty());
  const auto replayed = run_graph_program({"replay", folder.string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

TEST_F(GatewayRun, AKeyForATenantThatTheGraphLacksEndsTheStart) {
  write_text(scratch.path() / "keys", fmt::format("{} main\n{}2 mian\n", kKey, kKey));
  const auto run = run_graph_program({"run", graph(), "--out", folder.string()});
  EXPECT_NE(run.code, 0);
  EXPECT_THAT(run.out + run.err, AllOf(HasSubstr("keys:2: the graph has no tenant 'mian'"),
                                       Not(HasSubstr(std::string(kKey)))));
}

/// A prompt that only this request has.
std::string completion_body(int number) {
  return fmt::format(
      R"({{"model":"main","token_ids":[5,6,{}],"sampling_params":{{"max_tokens":4}}}})", number);
}

struct KilledGatewayRun : GatewayRun {
  KilledGatewayRun() {
    std::string text = *read_text_file(graph());
    const std::string edge = "\"gateway.generate -> router.generate\"";
    write_text(graph(), text.replace(text.find(edge), edge.size(),
                                     fmt::format("{{ path = {}, record = \"payload\" }}", edge)));
  }
  static std::string completion(int number) {
    return post("/inference/v1/generate", completion_body(number),
                fmt::format("session-{}", number));
  }
  /// All requests of clients before this are in the record: the gateway has taken a later step. The
  /// reply to the first question may leave in the step that accepted them.
  static void wait_until_accepted(uint16_t at) {
    for (int i = 0; i < 2; ++i)
      ASSERT_THAT(RawClient(at).say(post("/tokenize", R"({"prompt":"abc"})", "")).hear_all(),
                  StartsWith("HTTP/1.1 200"));
  }
  /// Last tokens of the prompts that the gateway sent, each with its number of times.
  std::map<int64_t, int> prompts_sent() const {
    std::map<int64_t, int> sent;
    const auto found =
        run_graph_program({"trace", "grep", folder.string(), "request>=0", "--edge",
                           "gateway.generate -> router.generate", "--limit", "100000", "--json"});
    EXPECT_EQ(found.code, 0) << found.err;
    const Json json = parse_json(found.out, "steps").value();
    for (const Json& step : json.find("steps")->as_array())
      ++sent[step.find("payload")->find("prompt_tokens")->as_array().back().as_int()];
    return sent;
  }
};

TEST_F(KilledGatewayRun, LosesNoRequestAndARepeatJoinsTheOneThatIsOpen) {
  constexpr int kAnswered = 8, kOpen = 3, kLate = 2;
  uint16_t at = 0;
  {
    Program run(words({"--max-steps", "1000000000", "--set", "graph.restarts_max=0"}));
    ASSERT_TRUE(run.wait_until_said("reward"));
    at = port();
    ASSERT_NE(at, 0);
    for (int i = 0; i < kAnswered; ++i)
      ASSERT_THAT(RawClient(at).say(completion(10 + i)).hear_all(), StartsWith("HTTP/1.1 200"));
    ASSERT_EQ(run_graph_program({"pause", folder.string()}).code, 0);
    std::vector<std::unique_ptr<RawClient>> open;
    for (int i = 0; i < kOpen; ++i) {
      open.push_back(std::make_unique<RawClient>(at));
      open.back()->say(completion(30 + i));
      wait_until_accepted(at);
    }
    const pid_t worker = worker_of(run);
    ASSERT_GT(worker, 0);
    ::kill(worker, SIGKILL);
    ASSERT_EQ(run.wait().code, 1);
    for (const auto& client : open) EXPECT_THAT(client->hear_all(), IsEmpty());
  }
  Program run({"primerl-graph", "run", "--resume", folder.string()});
  ASSERT_TRUE(run.wait_until_said("the run is live"));
  const uint16_t now = port(at);
  ASSERT_NE(now, 0);
  std::vector<std::unique_ptr<RawClient>> again;
  for (int i = 0; i < kOpen + kLate; ++i) {
    again.push_back(std::make_unique<RawClient>(now));
    again.back()->say(completion(30 + i));
    wait_until_accepted(now);
  }
  ASSERT_EQ(run_graph_program({"unpause", folder.string()}).code, 0);
  for (const auto& client : again)
    EXPECT_THAT(client->hear_all(),
                AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("\"prompt_tokens\":3")));
  // The client of a request that was answered before repeats it, too: another generation.
  EXPECT_THAT(RawClient(now).say(completion(10)).hear_all(), StartsWith("HTTP/1.1 200"));
  ::kill(run.pid(), SIGINT);
  EXPECT_EQ(run.wait().code, 130);
  auto sent = prompts_sent();
  EXPECT_EQ(sent.size(), static_cast<size_t>(kAnswered + kOpen + kLate));
  EXPECT_EQ(sent[10], 2);
  sent.erase(10);
  for (const auto& [prompt, count] : sent) EXPECT_EQ(count, 1) << prompt;
  expect_steps_and_rollouts_once(folder);
  const auto replayed = run_graph_program({"replay", folder.string()});
  EXPECT_EQ(replayed.code, 0) << replayed.out << replayed.err;
}

TEST_F(GatewayRun, CheckPlaysItWithoutASocketAndNamesWhatIsWrong) {
  const auto checked = run_graph_program({"check", graph()});
  EXPECT_EQ(checked.code, 0) << checked.out << checked.err;
  const auto open =
      run_graph_program({"check", graph(), "--set", "resource.front.listen=\"0.0.0.0:8000\"",
                         "--set", "resource.front.keys_file=\"\""});
  EXPECT_EQ(open.code, 2);
  EXPECT_THAT(open.out + open.err, HasSubstr("without 'keys_file'"));
}

}  // namespace
}  // namespace primerl
