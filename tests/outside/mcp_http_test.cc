// The environment "mcp": tools of servers that speak MCP over HTTP.
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "runtime/outside/piped_process.h"
#include "tests/outside/mcp_story.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// A server of the test in a process of its own.
struct McpHttp : McpStory {
  /// Starts it; its first line is its port.
  void serve(const std::vector<std::string>& command) {
    auto started = PipedProcess::start(command, {});
    ASSERT_TRUE(started.ok()) << started.error().text();
    server = std::move(started).value();
    std::string line;
    while (line.find('\n') == std::string::npos) {
      pollfd ready{server->output(), POLLIN, 0};
      ASSERT_GT(::poll(&ready, 1, static_cast<int>(kPatience.to_seconds() * 1000)), 0);
      std::array<char, 64> buffer{};
      const ssize_t size = ::read(server->output(), buffer.data(), buffer.size());
      ASSERT_GT(size, 0) << "the server has ended";
      line.append(buffer.data(), static_cast<size_t>(size));
    }
    url = fmt::format("http://127.0.0.1:{}/mcp", std::stoi(line));
  }
  void serve_stub(const std::string& form, const std::string& fault = "") {
    serve({PRIMERL_PYTHON, PRIMERL_SOURCE_DIR "/tests/outside/mcp_http_stub.py", form, fault});
  }
  void start_at(const std::string& address, const std::string& key = "Bearer key") {
    start_with(fmt::format(
        R"("stub": {{"type": "http", "url": "{}", "headers": {{"Authorization": "{}"}}}})", address,
        key));
  }
  void start_stub(const std::string& form = "json", const std::string& fault = "") {
    serve_stub(form, fault);
    start_at(url);
  }
  std::string fault_with(const std::string& fault) {
    start_stub("json", fault);
    return failure();
  }
  /// Why the rollout of a call fails.
  std::string failed(const std::string& call) {
    const auto answer = turn(++num_trajectories, {call});
    EXPECT_EQ(answer.end, OutsideEnd::kFailed) << answer.body;
    return answer.body;
  }

  std::unique_ptr<PipedProcess> server;
  std::string url;
  uint64_t num_trajectories = 100;
};

TEST_F(McpHttp, AnAddressThatIsNoneIsAFailureThatNamesTheServer) {
  for (const auto& [spec, why] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type": "http"})", "server 'files' has no 'url'"},
           {R"({"url": 3})", "server 'files' has no 'url'"},
           {R"({"url": "ftp://a/b"})", "has the url 'ftp://a/b': it begins with http://"},
           {R"({"url": "http:///b"})", "it begins with http:// or https:// and a host"},
           {R"({"url": "http://a:x/"})", "has the url 'http://a:x/': Port could not be cast"},
           {R"({"url": "http://me:key@a/"})", "it has a user's name; write 'headers'"},
           {R"({"url": "http://a/b c"})", "it has a space or a character that is not ASCII"},
           {R"({"url": "http://a/", "command": "x"})", "has both 'command' and 'url'"},
           {R"({"url": "http://a/", "headers": ["k"]})", "has 'headers', which is no object"},
           {R"({"url": "http://a/", "headers": {"K": "a\r\nB: c"}})",
            "has 'headers', which has 'K', which is no text of one line"},
           {R"({"url": "http://a/", "type": "sse"})", "has the type 'sse'; 'stdio' and 'http'"}}) {
    start_with("\"files\": " + spec);
    EXPECT_THAT(failure(), HasSubstr(why));
  }
}

TEST_F(McpHttp, AServerThatDoesNotAnswerAsMcpIsAFailureThatNamesIt) {
  start_at("http://127.0.0.1:1/mcp");
  EXPECT_THAT(failure(), HasSubstr("MCP server 'stub' cannot be reached: "));
  EXPECT_THAT(fault_with("refused"),
              HasSubstr("MCP server 'stub' answered with status 401: who are you?"));
  EXPECT_THAT(fault_with("moved"),
              HasSubstr("answered with status 307: it is elsewhere, at http://elsewhere/mcp"));
  EXPECT_THAT(fault_with("page"), HasSubstr("answered with content of the type 'text/html'"));
  EXPECT_THAT(fault_with("closed"), HasSubstr("closed the connection without an answer"));
  options.start_timeout = Duration::seconds(2) * kSlowness;
  EXPECT_THAT(fault_with("dumb"), HasSubstr("MCP server 'stub' did not start: no answer"));
}

TEST_F(McpHttp, ToolsAreCalledWithAnswersInJsonOrInEvents) {
  for (const std::string form : {"json", "events"}) {
    start_stub(form);
    ask(++num_calls, task_body(0, 0));
    const auto task = read_task(answer_to(num_calls).body);
    ASSERT_TRUE(task.ok()) << form;
    EXPECT_THAT(task->tools, HasSubstr(R"("name":"add")"));
    EXPECT_EQ(result(R"(add {"a": 1, "b": 2})", ++num_trajectories), "3");
    EXPECT_EQ(result("wrong", num_trajectories), "error: it went wrong");
    EXPECT_EQ(result("later", num_trajectories), "in the end") << "its stream was continued";
    EXPECT_EQ(result("count", num_trajectories), "1");
    // Questions of the server are answered, and messages without an answer are accepted.
    EXPECT_THAT(result("seen", num_trajectories),
                AllOf(HasSubstr("notifications/initialized"), HasSubstr("GET 7")));
    if (form == "events") {
      EXPECT_THAT(result("seen", num_trajectories), HasSubstr("answer to question"));
    }
  }
}

TEST_F(McpHttp, AFaultOfTheServerFailsTheRolloutAndASessionIsBegunAgain) {
  start_stub();
  EXPECT_EQ(result(R"(add {"a": 1, "b": 2})"), "3");
  EXPECT_THAT(failed("busy"), HasSubstr("MCP server 'stub' answered with status 503: come back"));
  EXPECT_EQ(result("count", ++num_trajectories), "0") << "another session";
  EXPECT_THAT(failed("gone"), HasSubstr("MCP server 'stub' has ended its session"));
  EXPECT_THAT(failed("text"), HasSubstr("answered with content of the type 'text/plain'"));
  EXPECT_THAT(failed("cut"), HasSubstr("closed the connection within an answer"));
  EXPECT_THAT(failed("flood"), HasSubstr("answered with more than 16777216 bytes"));
  EXPECT_THAT(failed("noise"), HasSubstr("wrote 100 lines that are no JSON-RPC"));
  EXPECT_THAT(failed("never"), HasSubstr("ended its answer without a result"));
  EXPECT_THAT(failed("lost"), HasSubstr("answered with status 405"));
  EXPECT_EQ(result(R"(add {"a": 1, "b": 2})", ++num_trajectories), "3");
}

TEST_F(McpHttp, ACallWithoutAnAnswerIsATextAndFourInARowBeginASessionAgain) {
  start_stub("events");
  EXPECT_EQ(result(R"(add {"a": 1, "b": 2})"), "3");
  for (int i = 0; i < 4; ++i) EXPECT_THAT(result("hang"), HasSubstr("error: no answer within"));
  EXPECT_EQ(result("count"), "0") << "another session";
  EXPECT_THAT(result("seen"), HasSubstr("notifications/cancelled"));
  // The end of the old session travels beside the calls of the new one.
  const Time until = steady_now() + kPatience;
  while (result("seen").find("DELETE") == std::string::npos) ASSERT_LT(steady_now(), until);
}

TEST_F(McpHttp, ATrajectoryMayHaveASessionOfItsOwn) {
  options.state = "trajectory";
  start_stub();
  const std::string add = R"(add {"a": 1, "b": 2})";
  EXPECT_EQ(result(add, 1), "3");
  EXPECT_EQ(result(add, 1), "3");
  EXPECT_EQ(result(add, 2), "3");
  EXPECT_EQ(result("count", 1), "2");
  EXPECT_EQ(result("count", 2), "1");
}

TEST_F(McpHttp, SpeaksWithAServerOfTheMcpPackage) {
  if (std::system(PRIMERL_PYTHON " -c 'import mcp.server.mcpserver' 2>/dev/null") != 0)
    GTEST_SKIP() << "no package 'mcp'";
  options.start_timeout = options.tool_timeout = Duration::seconds(30) * kSlowness;
  for (const std::string form : {"json_response=True", "json_response=False",
                                 "stateless_http=True"}) {
    // The port is free when the server prints it; uvicorn listens on the same socket.
    serve({PRIMERL_PYTHON, write("server.py",
                                 "import socket, uvicorn\n"
                                 "from mcp.server.mcpserver import MCPServer\n"
                                 "server = MCPServer('calculator')\n"
                                 "@server.tool()\n"
                                 "def add(a: int, b: int) -> int:\n"
                                 "    \"\"\"Adds two numbers.\"\"\"\n"
                                 "    return a + b\n"
                                 "listener = socket.create_server(('127.0.0.1', 0))\n"
                                 "print(listener.getsockname()[1], flush=True)\n"
                                 "app = server.streamable_http_app(" +
                                     form +
                                     ")\n"
                                     "uvicorn.Server(uvicorn.Config(app, log_level='error'))"
                                     ".run(sockets=[listener])\n")});
    start_at(url);
    EXPECT_EQ(result(R"(add {"a": 1, "b": 2})", ++num_trajectories), "3") << form;
    EXPECT_THAT(result(R"(add {"a": "x"})", num_trajectories), HasSubstr("validation errors"));
  }
}

}  // namespace
}  // namespace primerl
