// `rollouts` on run folders that the test writes: which rollouts are shown, and how.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"
#include "tests/trace/hosted_record.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

std::string line(const std::string& name, const std::string& end, int step, double reward,
                 const std::string& completion = "cba") {
  return Json::object()
             .set("rollout", name)
             .set("tenant", "main")
             .set("end", end)
             .set("step", step)
             .set("reward", reward)
             .set("staleness", 1)
             .set("versions", *parse_json(R"([{"version":1},{"version":2}])", "spans"))
             .set("turns", 2)
             .set("truncated", false)
             .set("prompt", "abc")
             .set("completion", completion)
             .dump() +
         "\n";
}

class Rollouts : public testing::Test {
 protected:
  Rollouts() {
    write_text(folder_ / "run.json", "{\"end\": \"running\"}\n");
    write_text(folder_ / "graph.resolved.toml",
               "[tenant.main]\nenvironment = { name = \"reverse_text\" }\n");
    write_text(folder_ / "rollouts.jsonl",
               line("r1", "trained", 1, 0.5) + line("r2", "trained", 1, 0.9) +
                   line("r3", "filtered", 0, 1) + line("r4", "trained", 2, 0.1) +
                   line("r5", "trained", 3, 0.9) + line("r6", "cancelled", 0, 0));
  }
  ProgramEnd run(std::vector<std::string> more) const {
    more.insert(more.begin(), {"rollouts", folder_.string()});
    return run_graph_program(more);
  }
  std::vector<std::string> names(std::vector<std::string> more) const {
    more.push_back("--json");
    const auto end = run(more);
    EXPECT_EQ(end.code, 0) << end.err;
    const auto found = parse_json(end.out, "rollouts");
    std::vector<std::string> names;
    if (!found.ok()) return names;
    EXPECT_EQ(*found->get_string("schema"), "primerl.rollouts/1");
    for (const Json& one : found->find("rollouts")->as_array())
      names.push_back(*one.get_string("rollout"));
    return names;
  }

  const ScratchFolder scratch_;
  const std::filesystem::path& folder_ = scratch_.path();
};

/// The record of the run names the tenants that are not in its file.
TEST_F(Rollouts, OfATenantThatJoinedAreFoundByItsNameAndNumber) {
  write_text(folder_ / "graph.resolved.toml",
             "[graph.tenant_limits]\ntenants_max = 2\n\n"
             "[tenant.main]\nenvironment = { name = \"reverse_text\" }\n");
  story::HostedRecord record(folder_);
  for (const uint32_t tenancy : {0U, 1U}) {
    record.change(story::kTrainer,
                  record.join("alice", tenancy, "environment = { name = \"echo\" }\n"));
    record.change(story::kTrainer, record.leave("alice", tenancy));
  }
  (void)record.close();
  std::filesystem::create_directories(folder_ / "rollouts");
  write_text(folder_ / "rollouts" / "main.jsonl", line("m", "trained", 1, 0.5));
  write_text(folder_ / "rollouts" / "alice.jsonl", line("a0", "trained", 1, 0.5));
  write_text(folder_ / "rollouts" / "alice-1.jsonl", line("a1", "trained", 2, 0.5));
  EXPECT_THAT(names({"--tenant", "alice~1"}), ElementsAre("a1"));
  EXPECT_THAT(names({"--tenant", "alice"}), ElementsAre("a0"));
  EXPECT_THAT(names({"--environment", "echo"}), ElementsAre("a0", "a1"));
  const auto unknown = run({"--tenant", "alice~2"});
  EXPECT_NE(unknown.code, 0);
  EXPECT_THAT(unknown.err, HasSubstr("tenants: alice, alice~1 and main"));
}

TEST_F(Rollouts, ShowTheNewestThatWereTrained) {
  EXPECT_THAT(names({}), ElementsAre("r5", "r4", "r2"));
  EXPECT_THAT(names({"--count", "1"}), ElementsAre("r5"));
}

TEST_F(Rollouts, ShowHowManySamplesARolloutHasIfItHasSeveral) {
  const auto with = [](const std::string& samples) {
    std::string text = line("r7", "trained", 4, 0.5);
    return text.insert(1, "\"samples\":" + samples + ",");
  };
  write_text(folder_ / "rollouts.jsonl", with("1") + with("3"));
  const auto end = run({});
  EXPECT_THAT(end.out, HasSubstr("2 turns  3 samples  versions 1, 2\n"));
  EXPECT_THAT(end.out, Not(HasSubstr("1 samples")));
}

TEST_F(Rollouts, ShowTheBestOrTheWorstOfAll) {
  EXPECT_THAT(names({"--best", "--count", "2"}), ElementsAre("r5", "r2"));
  EXPECT_THAT(names({"--worst"}), ElementsAre("r4", "r1", "r5"));
  EXPECT_EQ(run({"--best", "--worst"}).code, 3);
}

TEST_F(Rollouts, AreChosenByStepsAndByHowTheyEnded) {
  EXPECT_THAT(names({"--steps", "1..2"}), ElementsAre("r4", "r2", "r1"));
  EXPECT_THAT(names({"--end", "filtered"}), ElementsAre("r3"));
  EXPECT_THAT(names({"--end", "any", "--count", "2"}), ElementsAre("r6", "r5"));
  EXPECT_EQ(run({"--steps", "b"}).code, 3);
}

TEST_F(Rollouts, AreShownWithTheirNumbersAndTexts) {
  const auto end = run({"--count", "1"});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_EQ(end.out,
            "r5  trained in step 3  reward 0.9  staleness 1  2 turns  versions 1, 2\n"
            "  prompt\n    abc\n  completion\n    cba\n");
}

/// A line with a conversation of system, user, call, result and `num_more` further messages.
std::string conversation_line(size_t num_more) {
  Json line = *parse_json(
      R"({"rollout": "r7", "tenant": "main", "end": "trained", "step": 4, "reward": 1,)"
      R"( "staleness": 0, "turns": 2, "prompt": "Be brief.\n2+3?", "completion": "callFive."})",
      "line");
  Json messages =
      *parse_json(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": [)"
                  R"({"type": "text", "text": "2+3?"}]}, {"role": "assistant", "content": "",)"
                  R"( "reasoning": "I add.", "tool_calls": [{"type": "function", "function":)"
                  R"( {"name": "add", "arguments": {"a": 2}}}]}, {"role": "tool", "name": "add",)"
                  R"( "content": "5"}])",
                  "messages");
  for (size_t i = 0; i < num_more; ++i)
    messages.push_back(Json::object().set("role", "assistant").set("content", "Five."));
  return line.set("messages", std::move(messages)).dump() + "\n";
}

TEST_F(Rollouts, ShowEachMessageOfAConversationBelowItsRole) {
  write_text(folder_ / "rollouts.jsonl", conversation_line(1));
  EXPECT_EQ(run({}).out,
            "r7  trained in step 4  reward 1  staleness 0  2 turns\n"
            "  system\n    Be brief.\n"
            "  user\n    2+3?\n"
            "  assistant\n    (reasoning) I add.\n    (calls) add {\"a\":2}\n"
            "  tool add\n    5\n"
            "  assistant\n    Five.\n");
}

TEST_F(Rollouts, Show64MessagesUnlessTheyAreWantedWhole) {
  write_text(folder_ / "rollouts.jsonl", conversation_line(60));
  EXPECT_THAT(run({}).out, Not(HasSubstr("more messages")));
  write_text(folder_ / "rollouts.jsonl", conversation_line(61));
  EXPECT_THAT(run({}).out, HasSubstr("  ... 1 more messages: --full shows them\n"));
  EXPECT_THAT(run({"--full"}).out, Not(HasSubstr("more messages")));
}

TEST_F(Rollouts, OfAnEvaluationAreChosenByTheirEnd) {
  write_text(folder_ / "rollouts.jsonl",
             line("r1", "evaluated", 0, 1) + line("r2", "trained", 1, 1));
  EXPECT_THAT(names({"--end", "evaluated"}), ElementsAre("r1"));
}

TEST_F(Rollouts, CannotMoveTheCursorOfTheTerminal) {
  write_text(folder_ / "rollouts.jsonl", line("r1", "trained", 1, 1, "a\x1b[2Jb\nc\x7f"));
  const auto end = run({});
  EXPECT_THAT(end.out, HasSubstr("    a\\u001B[2Jb\n    c\\u007F\n"));
}

TEST_F(Rollouts, CutLongTextsUnlessTheyAreWantedWhole) {
  write_text(folder_ / "rollouts.jsonl", line("r1", "trained", 1, 1, std::string(4001, 'x')));
  EXPECT_THAT(run({}).out, HasSubstr("... 1 more bytes: --full shows them"));
  EXPECT_THAT(run({"--full"}).out,
              AllOf(HasSubstr(std::string(4001, 'x')), Not(HasSubstr("more bytes"))));
}

TEST_F(Rollouts, ListWhatExistsWhenNoneIsFound) {
  const auto end = run({"--end", "stale"});
  EXPECT_EQ(end.code, 0);
  EXPECT_THAT(end.out, IsEmpty());
  EXPECT_THAT(end.err, HasSubstr("no rollout that ended as 'stale'; of those that have ended: 1 "
                                 "cancelled, 1 filtered, 4 trained"));
}

TEST_F(Rollouts, OnBrokenLinesAreSkipped) {
  std::ofstream(folder_ / "rollouts.jsonl", std::ios::app) << "no JSON\n{\"rollout\":\"torn";
  EXPECT_THAT(names({}), ElementsAre("r5", "r4", "r2"));
  EXPECT_THAT(run({}).err, HasSubstr("warning: 1 of the run's rollouts"));
}

TEST_F(Rollouts, OfSeveralTenantsAreChosenByTenantOrEnvironment) {
  write_text(folder_ / "graph.resolved.toml",
             "[tenant.a]\nenvironment = { name = \"copy\" }\n"
             "[tenant.b]\nenvironment = { name = \"reverse_text\" }\n");
  std::filesystem::create_directory(folder_ / "rollouts");
  write_text(folder_ / "rollouts" / "a.jsonl", line("a1", "trained", 1, 0.5));
  write_text(folder_ / "rollouts" / "b.jsonl", line("b1", "trained", 1, 0.9));
  EXPECT_THAT(names({}), ElementsAre("a1", "b1"));
  EXPECT_THAT(names({"--tenant", "b"}), ElementsAre("b1"));
  EXPECT_THAT(names({"--environment", "copy"}), ElementsAre("a1"));
  EXPECT_THAT(names({"--best", "--count", "1"}), ElementsAre("b1"));
  const auto none = run({"--tenant", "c"});
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, AllOf(HasSubstr("no tenant 'c'"), HasSubstr("a and b")));
}

TEST_F(Rollouts, WithoutARunAreABadInput) {
  const auto end = run_graph_program({"rollouts", (folder_ / "nowhere").string()});
  EXPECT_EQ(end.code, 2);
}

}  // namespace
}  // namespace primerl
