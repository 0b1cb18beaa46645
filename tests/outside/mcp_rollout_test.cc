// A tool call of the policy, from its tokens to the answer of a real MCP server and back.
#include "actors/env/env.h"
#include "tests/actors/rollout_story.h"
#include "tests/outside/mcp_story.h"

namespace primerl {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// A rollout node whose engine is the test.
struct Policy : testing::RolloutStory {
  explicit Policy(Tenant tenant) : RolloutStory({}, std::move(tenant)) {
    auto source = std::make_shared<ChatSource>();
    source->file = "model/chat_template.jinja";
    source->templates.push_back(
        {"default",
         "{% if tools %}tools:{{ tools | tojson }}<eos>{% endif %}"
         "{% for m in messages %}{{ m.role }}:{{ m.content }}<eos>{% endfor %}"
         "{% if add_generation_prompt %}assistant:{% endif %}"});
    tokenizer.set_chat_source(std::move(source));
  }
  void TestBody() override {}
};

/// The nodes rollout and env of a run; the test carries their messages.
struct McpRollout : McpStory {
  McpRollout() {
    contract.name = "mcp";
    contract.outside = [](const void*) { return OutsidePool(); };  // the workers are started here
    tenant = testing::a_tenant(1, 1);
    tenant.seq_len = 8192;
    tenant.sampling.max_tokens = 256;
    tenant.chat.parser = "hermes";
    tenant.environment = {"mcp", nullptr, &contract};
    start_with(fmt::format(R"("stub": {{"command": "{}", "args": ["{}"]}})", PRIMERL_PYTHON,
                           PRIMERL_SOURCE_DIR "/tests/outside/mcp_stub.py"));
    env.set_tenants({tenant});
    env.use("outside", *outside);
    env.set_room("task", 1);
    policy = std::make_unique<Policy>(tenant);
  }
  /// The next message that env sends, once the worker has answered.
  template <class Message>
  Message next(const std::string& output) {
    const auto until = deadline_after(kPatience);
    while (true) {
      EXPECT_TRUE(env.run_work().ok());
      const auto sent = env.take<Message>(output);
      if (!sent.empty()) return sent.front();
      std::unique_lock lock(mutex);
      if (!changed.wait_until(lock, until, [this] { return has_news; })) break;
      has_news = false;
    }
    ADD_FAILURE() << "env sends no '" << output << "'";
    return {};
  }
  /// The policy says this; what env answers goes back to it.
  void say(const std::string& text) {
    policy->complete(prompt, text + "\n");
    const auto actions = policy->actions();
    ASSERT_THAT(actions, SizeIs(1));
    ASSERT_TRUE(env.give("action", actions[0]).ok());
    const auto observation = next<Observation>("observation");
    EXPECT_EQ(observation.fault, "");
    ASSERT_TRUE(policy->rollout.give("observation", observation).ok());
  }
  /// The tokens of the policy's next prompt, as text.
  std::string read_prompt() {
    const auto requests = policy->requests();
    EXPECT_THAT(requests, SizeIs(1));
    if (requests.empty()) return "";
    prompt = requests[0];
    return {prompt.prompt_tokens.begin(), prompt.prompt_tokens.end()};
  }

  EnvironmentContract contract;
  Tenant tenant;
  NodeRunner<Env> env{EnvOptions()};
  std::unique_ptr<Policy> policy;
  GenerateRequest prompt;
};

TEST_F(McpRollout, AToolCallComesBackAsAMessageOfTheToolAndTheAnswerIsScored) {
  policy->live(0);
  ASSERT_TRUE(policy->rollout.give("task", next<Task>("task")).ok());
  const std::string first = read_prompt();
  EXPECT_THAT(first, HasSubstr(R"("name": "add")"));
  EXPECT_THAT(first, EndsWith("user:2+3?\nassistant:"));
  say(R"(<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>)");
  EXPECT_THAT(read_prompt(), EndsWith("\ntool:5\nassistant:"));
  say("5");
  const auto groups = policy->groups();
  ASSERT_THAT(groups, SizeIs(1));
  const Trajectory& trajectory = groups[0].members.at(0);
  EXPECT_EQ(trajectory.reward, 1) << "the file's Environment compares with 5";
  EXPECT_EQ(trajectory.num_turns, 2);
  EXPECT_FALSE(trajectory.is_truncated);
}

TEST_F(McpRollout, ACallThatNoToolFitsIsReadByThePolicy) {
  policy->live(0);
  ASSERT_TRUE(policy->rollout.give("task", next<Task>("task")).ok());
  read_prompt();
  say(R"(<tool_call>{"name": "subtract", "arguments": {}}</tool_call>)");
  EXPECT_THAT(read_prompt(), HasSubstr("\ntool:error: no tool 'subtract'; tools: add, count"));
}

}  // namespace
}  // namespace primerl
