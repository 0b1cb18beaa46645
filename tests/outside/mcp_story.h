/// The environment "mcp" in a worker: the test names its servers and makes the policy's turns.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "actors/env/outside_calls.h"
#include "actors/env/python/workers.h"
#include "tests/outside/outside_story.h"

namespace primerl {

inline constexpr std::string_view kMcpEnvironment =
    "class Environment:\n"
    "    def __init__(self, ordinal, seed):\n"
    "        pass\n"
    "    def task(self):\n"
    "        return {'messages': [{'role': 'user', 'content': '2+3?'}]}\n"
    "    def step(self, action):\n"
    "        return {'reward': float(action == '5')}\n";

/// A worker of the environment "mcp" with servers that the test names.
struct McpStory : OutsideStory {
  McpStory() {
    options.python = PRIMERL_PYTHON;
    options.file = write("env.py", std::string(kMcpEnvironment));
    options.tool_timeout = Duration::seconds(2) * kSlowness;
    options.result_bytes_max = 100;
    options.calls_max = 3;
  }
  void start_with(const std::string& servers) {
    options.servers = write("mcp.json", "{\"mcpServers\": {" + servers + "}}");
    start(mcp_environment().outside(&options));
  }
  /// Asks for one turn with these calls: "name" or "name {arguments}".
  OutsideAnswer turn(uint64_t trajectory, const std::vector<std::string>& calls) {
    ChatMessage message = chat_message("assistant", "");
    for (const std::string& call : calls) {
      const size_t space = call.find(' ');
      const std::string arguments = space == std::string::npos ? "{}" : call.substr(space + 1);
      message.tool_calls.push_back({.id = fmt::format("call{}", message.tool_calls.size()),
                                    .name = call.substr(0, space),
                                    .arguments = arguments});
    }
    const int32_t first = num_turns[trajectory]++;
    ask(++num_calls,
        step_body({.trajectory = trajectory,
                   .first_turn = first,
                   .actions = {"text of the calls"},
                   .messages = {message}}),
        trajectory + 1, first == 0);
    return answer_to(num_calls);
  }
  /// The text of the one tool message that answers a call.
  std::string result(const std::string& call, uint64_t trajectory = 0) {
    const auto answer = turn(trajectory, {call});
    const auto read = read_step(answer.body);
    if (!read.ok() || read->step.messages.size() != 1) return "no result: " + answer.body;
    EXPECT_EQ(read->step.messages[0].role, "tool");
    EXPECT_EQ(read->step.messages[0].tool_call_id, "call0");
    return text_of(read->step.messages[0]);
  }

  McpOptions options;
  uint64_t num_calls = 0;
  std::map<uint64_t, int32_t> num_turns;
};

}  // namespace primerl
