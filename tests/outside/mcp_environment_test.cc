// The environment "mcp": tools of servers that speak MCP over stdio.
#include <cstdlib>

#include "tests/outside/mcp_story.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// The environment with the stub server, whose tools have all faults.
struct McpEnvironment : McpStory {
  static std::string stub() {
    return fmt::format(R"("stub": {{"command": "{}", "args": ["{}/tests/outside/mcp_stub.py"],)"
                       R"( "env": {{"PLACE": "here"}}}})",
                       PRIMERL_PYTHON, PRIMERL_SOURCE_DIR);
  }
  std::string fault_with(const std::string& fault) {
    start_with(fmt::format(R"("stub": {{"command": "{}", "args": ["{}", "{}"]}})", PRIMERL_PYTHON,
                           PRIMERL_SOURCE_DIR "/tests/outside/mcp_stub.py", fault));
    return failure();
  }
};

TEST_F(McpEnvironment, AServerThatCannotBeUsedIsAFailureThatNamesIt) {
  start_with(R"("files": {"serverUrl": "http://localhost"})");
  EXPECT_THAT(failure(), HasSubstr("server 'files' has neither 'command' nor 'url'"));
  start_with(R"("files": {"command": "x", "type": "sse"})");
  EXPECT_THAT(failure(), HasSubstr("server 'files' has the type 'sse'; 'stdio' and 'http'"));
  start_with("");
  EXPECT_THAT(failure(), HasSubstr("has no server"));
  start_with(R"("files": {"command": "python3", "env": {"LEVEL": 3}})");
  EXPECT_THAT(failure(), HasSubstr("server 'files' has 'env', which is no object of texts"));
  start_with(R"("files": {"command": "no-such-program-here"})");
  EXPECT_THAT(failure(), HasSubstr("MCP server 'files' cannot be started"));
  EXPECT_THAT(fault_with("exit"), HasSubstr("MCP server 'stub' ended"));
  EXPECT_THAT(fault_with("twice"), HasSubstr("MCP servers 'stub' and 'stub' have a tool 'add'"));
  options.start_timeout = Duration::seconds(2) * kSlowness;
  EXPECT_THAT(fault_with("dumb"), HasSubstr("MCP server 'stub' did not start: no answer"));
}

TEST_F(McpEnvironment, ToolsGoIntoTheTaskAndTheirResultsComeBack) {
  start_with(stub());
  ask(++num_calls, task_body(0, 0));
  const auto task = read_task(answer_to(num_calls).body);
  ASSERT_TRUE(task.ok());
  EXPECT_EQ(text_of(task->messages[0]), "2+3?");
  EXPECT_THAT(task->tools,
              AllOf(HasSubstr(R"("type":"function")"), HasSubstr(R"("name":"add")"),
                    HasSubstr(R"("parameters":{)"), HasSubstr(R"("name":"unlisted")")));
  EXPECT_EQ(result(R"(add {"a": 1, "b": 2})"), "3");
  EXPECT_EQ(result("count"), "1 in here");
  EXPECT_EQ(result("late"), "{\"late\": true}");
  EXPECT_EQ(result("image"), "(image left out)\na page");
  ask(++num_calls, step_body({.trajectory = 0, .first_turn = num_turns[0], .actions = {"5"}}), 1,
      false);
  EXPECT_EQ(read_step(answer_to(num_calls).body)->step.reward, 1) << "judged by the file";
}

TEST_F(McpEnvironment, TheFilesEnvironmentIsToldOfAnEvaluation) {
  options.file = write("env.py",
                       "class Environment:\n"
                       "    def __init__(self, ordinal, seed, evaluation=False):\n"
                       "        self.text = f'{ordinal} {evaluation}'\n"
                       "    def task(self): return self.text\n"
                       "    def step(self, action): return self.text\n");
  start_with(stub());
  for (const bool is_evaluation : {true, false}) {
    ask(++num_calls, task_body(3, 0, is_evaluation));
    const std::string said = is_evaluation ? "3 True" : "3 False";
    EXPECT_EQ(read_task(answer_to(num_calls).body)->prompt, said);
    const uint64_t trajectory = ++num_calls;
    ask(trajectory,
        step_body({.trajectory = trajectory,
                   .ordinal = 3,
                   .actions = {"x"},
                   .is_evaluation = is_evaluation}),
        trajectory);
    EXPECT_EQ(read_step(answer_to(num_calls).body)->step.text, said);
  }
}

TEST_F(McpEnvironment, FaultsOfACallAreTextsForThePolicy) {
  start_with(stub());
  EXPECT_EQ(result("wrong"), "it went wrong");
  EXPECT_EQ(result("unlisted"), "error: unknown tool");
  EXPECT_THAT(result("delete"), HasSubstr("error: no tool 'delete'; tools: add, count"));
  EXPECT_THAT(result("add [1]"), HasSubstr("error: the arguments are not an object"));
  EXPECT_THAT(result("add {\"a\""), HasSubstr("error: the arguments are not JSON"));
  EXPECT_EQ(result("garbage {\"lines\": 3}"), "garbage was written");
  EXPECT_EQ(result(R"(giant {"characters": 50})").size(), 100U) << "two bytes each: at the bound";
  EXPECT_THAT(result(R"(giant {"characters": 51})"), HasSubstr("\n(cut: 102 bytes, 100 are most)"));
}

TEST_F(McpEnvironment, CallsOfOneTurnAreBounded) {
  start_with(stub());
  const std::string add = R"(add {"a": 1, "b": 2})";
  const auto step = read_step(turn(1, {add, add, add, add}).body);
  ASSERT_TRUE(step.ok());
  ASSERT_THAT(step->step.messages, SizeIs(4));
  EXPECT_EQ(text_of(step->step.messages[2]), "3");
  EXPECT_EQ(text_of(step->step.messages[3]), "error: 3 calls a turn are most");
}

TEST_F(McpEnvironment, AServerThatHangsIsStartedAgain) {
  start_with(stub());
  EXPECT_THAT(result("hang"), HasSubstr("error: no answer within"));
  // It works on one call after the other. After four without an answer it is replaced.
  for (int i = 0; i < 3; ++i) EXPECT_THAT(result("count"), HasSubstr("error: no answer within"));
  EXPECT_EQ(result("count"), "0 in here");
}

TEST_F(McpEnvironment, AServerThatEndsOrWritesTooMuchFailsTheRolloutAndIsStartedAgain) {
  start_with(stub());
  const auto ended = turn(1, {"end"});
  EXPECT_EQ(ended.end, OutsideEnd::kFailed) << ended.body;
  EXPECT_THAT(ended.body, HasSubstr("MCP server 'stub' ended"));
  EXPECT_EQ(result("count", 2), "0 in here");
  EXPECT_THAT(turn(3, {"flood"}).body, HasSubstr("wrote a line of more than 16777216 bytes"));
  EXPECT_THAT(turn(4, {"garbage {\"lines\": 100}"}).body,
              HasSubstr("wrote 100 lines that are no JSON-RPC"));
  EXPECT_EQ(result("garbage {\"lines\": 99}", 5), "garbage was written");
}

TEST_F(McpEnvironment, ATrajectoryMayHaveServersOfItsOwn) {
  options.state = "trajectory";
  start_with(stub());
  const std::string add = R"(add {"a": 1, "b": 2})";
  EXPECT_EQ(result(add, 1), "3");
  EXPECT_EQ(result(add, 1), "3");
  EXPECT_EQ(result(add, 2), "3");
  EXPECT_EQ(result("count", 1), "2 in here");
  EXPECT_EQ(result("count", 2), "1 in here");
}

TEST_F(McpEnvironment, ServersOfTrajectoriesAreBounded) {
  options.state = "trajectory";
  options.processes_max = 2;
  start_with(stub());
  EXPECT_EQ(result("count", 1), "0 in here");
  EXPECT_EQ(result("count", 2), "0 in here");
  const auto third = turn(3, {"count"});
  EXPECT_EQ(third.end, OutsideEnd::kFailed);
  EXPECT_THAT(third.body, HasSubstr("have 2 MCP servers, processes_max is 2"));
  EXPECT_EQ(result("count", 2), "0 in here");
  outside->forget(0, 2);  // trajectory 1 has ended
  EXPECT_EQ(result("count", 4), "0 in here");
}

TEST_F(McpEnvironment, SpeaksWithAServerOfTheMcpPackage) {
  if (std::system(PRIMERL_PYTHON " -c 'import mcp.server.mcpserver' 2>/dev/null") != 0)
    GTEST_SKIP() << "no package 'mcp'";
  options.tool_timeout = Duration::seconds(20) * kSlowness;
  const std::string file = write("server.py",
                                 "from mcp.server.mcpserver import MCPServer\n"
                                 "server = MCPServer('calculator')\n"
                                 "@server.tool()\n"
                                 "def add(a: int, b: int) -> int:\n"
                                 "    \"\"\"Adds two numbers.\"\"\"\n"
                                 "    return a + b\n"
                                 "server.run()\n");
  start_with(
      fmt::format(R"("calculator": {{"command": "{}", "args": ["{}"]}})", PRIMERL_PYTHON, file));
  EXPECT_EQ(result(R"(add {"a": 1, "b": 2})"), "3");
  EXPECT_THAT(result(R"(add {"a": "x"})"), HasSubstr("validation errors"));
}

}  // namespace
}  // namespace primerl
