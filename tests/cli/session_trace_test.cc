#include "runtime/cli/session_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/router/prefix_table.h"
#include "graph/base/files.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

/// 0, 1, 2, ... as a JSON array.
std::string ids(int count, int first = 0) {
  std::string text = "[";
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : ",") + std::to_string(first + i);
  return text + "]";
}

struct SessionTraceStory : ::testing::Test {
  Result<SessionTrace> read(const std::string& text) {
    write_text(file(), text);
    return read_session_trace(file());
  }
  std::string fault(const std::string& text) {
    const auto trace = read(text);
    return trace.ok() ? "none" : trace.error().text();
  }
  std::filesystem::path file() const { return scratch.path() / "sessions.jsonl"; }
  ScratchFolder scratch;
};

constexpr auto kPlain = R"({"session":1,"arrival_s":0,"prompt_tokens":64,"completion_tokens":8)";

TEST_F(SessionTraceStory, AFaultHasFileAndLine) {
  const std::string good = std::string(kPlain) + "}\n";
  EXPECT_THAT(fault(good + good + "{\n"), HasSubstr(file().string() + ":3"));
  EXPECT_THAT(fault(good + "[1]\n"), HasSubstr(file().string() + ":2: a line is an object"));
  EXPECT_THAT(fault(good + good + std::string(kPlain) + ",\"sesion\":2}\n"),
              HasSubstr(file().string() + ":3: unknown key 'sesion'"));
}

TEST_F(SessionTraceStory, AnEmptyFileIsNoTrace) {
  EXPECT_THAT(fault(""), HasSubstr("no turn is in it"));
  EXPECT_THAT(fault("\n"), HasSubstr(":1"));
}

TEST_F(SessionTraceStory, AnotherKindOfTurnIsRefused) {
  EXPECT_THAT(fault(R"({"arrival_s":0,"prompt_tokens":64,"completion_tokens":8})"),
              HasSubstr("session"));
  EXPECT_THAT(fault(R"({"session":1,"prompt_tokens":64,"completion_tokens":8})"),
              HasSubstr("arrival_s"));
  EXPECT_THAT(fault(R"({"session":1,"arrival_s":0,"completion_tokens":8})"),
              HasSubstr("either 'prompt', token ids, or 'prompt_tokens'"));
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"prompt":[1]})"), HasSubstr("either 'prompt'"));
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"completion":[1]})"),
              HasSubstr("'completion' means nothing beside 'prompt_tokens'"));
  EXPECT_THAT(fault(R"({"session":1,"arrival_s":0,"prompt":[],"completion":[1]})"),
              HasSubstr("'prompt' is empty"));
  EXPECT_THAT(fault(R"({"session":1,"arrival_s":0,"prompt":[1,-1],"completion":[1]})"),
              HasSubstr("holds -1, which is no token id"));
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"blocks":["12","xy"]})"),
              HasSubstr("holds \"xy\", which is no hexadecimal number"));
}

TEST_F(SessionTraceStory, ATurnThatContradictsItselfIsRefused) {
  const std::string ids = R"({"session":1,"arrival_s":0,"prompt":[1],"completion":[2])";
  for (const char* key : {"blocks", "shared", "shared_tokens"})
    EXPECT_THAT(fault(ids + ",\"" + key + "\":1}"),
                HasSubstr(fmt::format("'{}' means nothing beside 'prompt'", key)));
  EXPECT_THAT(fault(ids + R"(,"completion_tokens":1})"), HasSubstr("either 'completion' or"));
  const std::string named = std::string(kPlain) + R"(,"blocks":["1"])";
  for (const char* key : {"shared", "shared_tokens"})
    EXPECT_THAT(fault(named + ",\"" + key + "\":1}"),
                HasSubstr(fmt::format("'{}' means nothing beside 'blocks'", key)));
  EXPECT_THAT(fault(named + R"(,"salt":"s"})"), HasSubstr("'salt' means nothing beside 'blocks'"));
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"shared":"a"})"), HasSubstr("go together"));
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"shared_tokens":3})"), HasSubstr("go together"));
}

TEST_F(SessionTraceStory, AnInvalidKeyOrNumberIsShownUnchanged) {
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"a\u001b[31mb":1})"),
              HasSubstr(R"(unknown key 'a\u001b[31mb')"));
  EXPECT_THAT(fault(R"({"session":18446744073709551615,"arrival_s":0,)"
                    R"("prompt_tokens":1,"completion_tokens":1})"),
              HasSubstr("'session' is 18446744073709551615, not in 0 to 9223372036854775807"));
}

TEST_F(SessionTraceStory, NumbersEndAtTheirLimits) {
  const auto turn = [](int64_t prompt, int64_t completion) {
    return fmt::format(R"({{"session":1,"arrival_s":0,"prompt_tokens":{},"completion_tokens":{}}})",
                       prompt, completion);
  };
  EXPECT_EQ(fault(turn(kTurnTokensMax, 1)), "none");
  EXPECT_THAT(fault(turn(kTurnTokensMax + 1, 1)), HasSubstr("not in 1 to 1048576"));
  EXPECT_THAT(fault(turn(0, 1)), HasSubstr("'prompt_tokens' is 0"));
  EXPECT_THAT(fault(turn(1, 0)), HasSubstr("'completion_tokens' is 0"));
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"shared":"a","shared_tokens":65})"),
              HasSubstr("not in 0 to 64"));
  EXPECT_EQ(fault(std::string(kPlain) + R"(,"blocks":["1","2"]})"), "none");
  EXPECT_THAT(fault(std::string(kPlain) + R"(,"blocks":["1","2","3"]})"),
              HasSubstr("at most 2 names for 72 tokens"));
  EXPECT_THAT(fault(std::string(kTraceLineBytesMax + 1, ' ')),
              HasSubstr(":1: the line has 16777217 bytes, at most 16777216 are valid"));
}

TEST_F(SessionTraceStory, ATraceHasAtMostSoManyTurnsAndBlocks) {
  const std::string turn = std::string(kPlain) + "}\n";  // two blocks
  write_text(file(), turn + turn + turn);
  EXPECT_TRUE(read_session_trace(file(), {.turns_max = 3}).ok());
  EXPECT_THAT(read_session_trace(file(), {.turns_max = 2}).error().text(),
              HasSubstr(":3: a trace has at most 2 turns"));
  EXPECT_TRUE(read_session_trace(file(), {.blocks_max = 6}).ok());
  EXPECT_THAT(read_session_trace(file(), {.blocks_max = 5}).error().text(),
              HasSubstr(":3: the prompts of a trace have at most 5 blocks of 32 tokens"));
}

TEST_F(SessionTraceStory, ASessionDoesNotGoBackInTime) {
  const auto turn = [](int session, double arrival_s) {
    return fmt::format(
        "{{\"session\":{},\"arrival_s\":{},\"prompt_tokens\":9,\"completion_tokens\":1}}\n",
        session, arrival_s);
  };
  EXPECT_EQ(fault(turn(1, 2) + turn(2, 1) + turn(1, 2)), "none");
  EXPECT_THAT(fault(turn(1, 2) + turn(1, 1.5)),
              HasSubstr(":2: session 1 arrives at 1.5 s, its turn before at 2 s"));
}

TEST_F(SessionTraceStory, TokenIdsAreNamedAsTheRouterNamesThem) {
  const auto trace = read(R"({"session":7,"arrival_s":0,"salt":"s","prompt":)" + ids(40) +
                          R"(,"completion":)" + ids(24, 40) + "}");
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  ASSERT_THAT(trace->turns, SizeIs(1));
  const TracedTurn& turn = trace->turns[0];
  EXPECT_EQ(turn.num_prompt_tokens, 40);
  EXPECT_EQ(turn.num_completion_tokens, 24);
  EXPECT_EQ(turn.num_prompt_blocks(), 1U);
  std::vector<int32_t> tokens(64);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
  EXPECT_EQ(turn.blocks,
            RouteBlockNamer().names_of(tokens, {{TenantSlot(0)}, "s", PolicyVersion(0)}));
}

TEST_F(SessionTraceStory, SharedTokensAreThoseOfAllThatNameThem) {
  const auto turn = [](int session, const std::string& shared, const std::string& more = "") {
    return fmt::format(
        "{{\"session\":{},\"arrival_s\":0,\"prompt_tokens\":96,\"completion_tokens\":32,"
        "\"shared\":\"{}\",\"shared_tokens\":64{}}}\n",
        session, shared, more);
  };
  const auto trace = read(turn(1, "a") + turn(2, "a") + turn(3, "b") + turn(1, "a") +
                          turn(4, "a", ",\"tenant\":\"other\"") + turn(5, "a", ",\"salt\":\"1\""));
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  const auto block = [&](size_t index, size_t place) { return trace->turns[index].blocks[place]; };
  ASSERT_THAT(trace->turns[0].blocks, SizeIs(4));
  EXPECT_EQ(block(0, 1), block(1, 1));
  EXPECT_NE(block(0, 2), block(1, 2)) << "behind what is shared";
  EXPECT_EQ(trace->turns[0].blocks, trace->turns[3].blocks) << "the same session";
  for (const size_t stranger : {2, 4, 5}) EXPECT_NE(block(0, 0), block(stranger, 0)) << stranger;
}

TEST_F(SessionTraceStory, SessionsAndGroupsAreThoseOfATenant) {
  const auto turn = [](const std::string& tenant, int session, const std::string& group) {
    return "{\"tenant\":\"" + tenant + "\",\"session\":" + std::to_string(session) +
           ",\"arrival_s\":0,\"prompt_tokens\":9,\"completion_tokens\":1" + group + "}\n";
  };
  const auto trace = read(turn("a", 1, ",\"group\":1") + turn("a", 2, ",\"group\":1") +
                          turn("b", 1, ",\"group\":1") + turn("b", 2, ""));
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  std::vector<uint32_t> sessions, groups;
  for (const auto& each : trace->turns) {
    sessions.push_back(each.session);
    groups.push_back(each.group);
  }
  EXPECT_THAT(sessions, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(groups, ElementsAre(0, 0, 1, 2));
}

TEST_F(SessionTraceStory, AWrittenTraceReadsTheSame) {
  const auto trace = read(R"({"session":7,"arrival_s":0.25,"group":3,"prompt":)" + ids(70) +
                          R"(,"completion":[1,2]})" + "\n" + kPlain + "}");
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  const std::string text = session_trace_text(*trace);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("\"prompt\":")));
  const auto again = read(text);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_EQ(session_trace_text(*again), text);
  EXPECT_EQ(again->turns[0].blocks, trace->turns[0].blocks);
}

struct RolloutsStory : SessionTraceStory {
  /// Two turns: 40 tokens of prompt, 10 sampled by two versions, 20 of an observation, 10 sampled.
  static std::string rollout(int group, int member) {
    return fmt::format(R"({{"rollout":"main-{0}-0-{1}","tenant":"main","group":{0},"attempt":0,)"
                       R"("version":4,"tokens":{2},"versions":[)"
                       R"({{"version":4,"begin":40,"end":46}},{{"version":5,"begin":46,"end":50}},)"
                       R"({{"version":5,"begin":70,"end":80}}]}})",
                       group, member, ids(80)) +
           "\n";
  }
  Result<SessionTrace> read_run(const std::string& text) {
    write_text(file(), text);
    return read_rollouts(file(), 0.5);
  }
};

TEST_F(RolloutsStory, TurnsAreWhatWasSampledInOneGo) {
  // Rollouts are written in the order in which they end.
  const auto trace = read_run(rollout(8, 1) + rollout(7, 0) + rollout(7, 1));
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  EXPECT_EQ(trace->num_sessions, 3U);
  EXPECT_EQ(trace->num_groups, 2U);
  ASSERT_THAT(trace->turns, SizeIs(6));
  EXPECT_EQ(trace->turns[0].num_prompt_tokens, 40);
  EXPECT_EQ(trace->turns[0].num_completion_tokens, 10);
  EXPECT_THAT(trace->turns[0].blocks, SizeIs(1));
  EXPECT_EQ(trace->turns[1].num_prompt_tokens, 70);
  EXPECT_EQ(trace->turns[1].num_completion_tokens, 10);
  EXPECT_THAT(trace->turns[1].blocks, SizeIs(2));
  EXPECT_EQ(trace->turns[3].arrival_s, 0);
  EXPECT_EQ(trace->turns[4].arrival_s, 0.5);
}

/// `text` with the key `sample_begins`.
std::string with_samples(std::string text, const std::string& begins) {
  return text.insert(text.find("\"versions\""), "\"sample_begins\":" + begins + ",");
}

TEST_F(RolloutsStory, APromptIsWhatCameBeforeInItsSample) {
  const auto trace = read_run(with_samples(rollout(7, 0), "[50]"));
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  ASSERT_THAT(trace->turns, SizeIs(2));
  EXPECT_EQ(trace->turns[0].num_prompt_tokens, 40);
  EXPECT_EQ(trace->turns[1].num_prompt_tokens, 20) << "the second sample begins at token 50";
  EXPECT_EQ(trace->turns[1].num_completion_tokens, 10);
  EXPECT_EQ(trace->turns[1].session, trace->turns[0].session);
}

TEST_F(RolloutsStory, ASampleThatBeginsNowhereIsNamed) {
  for (const char* begins : {"[80]", "[0]", "[50,50]"})
    EXPECT_THAT(read_run(with_samples(rollout(7, 0), begins)).error().text(),
                HasSubstr("of 80 tokens"))
        << begins;
  EXPECT_TRUE(read_run(with_samples(rollout(7, 0), "[79]")).ok());
}

TEST_F(RolloutsStory, AKilledRunMayLeaveHalfALine) {
  const auto trace = read_run(rollout(7, 0) + "{\"rollout\":\"mai");
  ASSERT_TRUE(trace.ok()) << trace.error().text();
  EXPECT_EQ(trace->num_sessions, 1U);
}

TEST_F(RolloutsStory, WithoutTokenIdsItSaysHowToGetThem) {
  const auto trace = read_run(
      R"({"rollout":"main-7-0-0","tenant":"main","group":7,"attempt":0,"version":4,"versions":[]})"
      "\n");
  ASSERT_FALSE(trace.ok());
  EXPECT_THAT(trace.error().text(), HasSubstr(":1: the rollout has no token ids"));
  EXPECT_THAT(trace.error().text(), HasSubstr("node.rollout.log_tokens=true"));
  EXPECT_THAT(read_run("").error().text(), HasSubstr("no rollout is in it"));
}

}  // namespace
}  // namespace primerl
