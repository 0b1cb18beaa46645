// The turns of a run and the branches of its answer: what trains, and what has mask 0.
#include "actors/rollout/driven_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/common/group_bytes.h"
#include "actors/gateway/run_turns.h"
#include "kernels/engine/kept_sets.h"
#include "tests/actors/fakes.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Ids = std::vector<int32_t>;

/// The gateway's side makes the turns, so both sides must agree.
struct DrivenRunStory : ::testing::Test {
  void turn(const Ids& prompt, const Ids& tokens, int64_t version = 3, Blob kept = {}) {
    const int64_t most = std::ssize(prompt) + std::ssize(tokens);
    ASSERT_TRUE(gateway.begin(name, most, 1000).ok());
    MemberTurn made = gateway.add(name, most, prompt, tokens);
    for (size_t i = 0; i < tokens.size(); ++i)
      made.logprobs.push_back(-0.1F * static_cast<float>(tokens[i]));
    made.spans = {{PolicyVersion(version), 0, static_cast<int32_t>(tokens.size())}};
    made.kept = std::move(kept);
    const Status added = run.add(made);
    ASSERT_TRUE(added.ok()) << added.error().text();
    turns.push_back(made);
  }
  static Branch branch(Ids tokens, std::vector<std::pair<int32_t, int32_t>> sampled) {
    return {std::move(tokens), std::move(sampled)};
  }
  static MemberResult result(std::vector<Branch> branches) {
    MemberResult made;
    made.branches = std::move(branches);
    return made;
  }
  DrivenRun::Samples samples_of(const MemberResult& member) {
    const auto samples = run.samples({member});
    EXPECT_TRUE(samples[0].ok()) << (samples[0].ok() ? "" : samples[0].error().text());
    num_unmatched = run.num_unmatched(samples);
    return samples[0].ok() ? *samples[0] : DrivenRun::Samples();
  }
  static std::string masks(const Trajectory& arrays) {
    std::string text;
    for (size_t i = 0; i < arrays.sampled.size(); ++i) {
      for (const int32_t begin : arrays.sample_begins)
        if (std::cmp_equal(begin, i)) text += '|';
      text += arrays.sampled[i] == 1 ? '1' : '0';
    }
    return text;
  }

  const MemberName name{7, 0, 1};
  RunTurns gateway;
  DrivenRun run;
  std::vector<MemberTurn> turns;
  int32_t num_unmatched = 0;
};

TEST_F(DrivenRunStory, ATurnThatDoesNotFollowThoseBeforeIsRefused) {
  turn({1, 2}, {3, 4});
  MemberTurn next = turns[0];
  EXPECT_THAT(run.add(next).error().text(), HasSubstr("turn 0 came after 1 turns"));
  next.index = 1;
  EXPECT_THAT(run.add(next).error().text(),
              HasSubstr("follows 0 tokens of sequence 0, which has 4"));
  next.sequence = 2;
  EXPECT_THAT(run.add(next).error().text(), HasSubstr("extends sequence 2 of 1"));
  next.sequence = 1;
  next.prompt_tokens.clear();
  EXPECT_THAT(run.add(next).error().text(), HasSubstr("has no prompt"));
  next = turns[0];
  next.index = 1;
  next.sequence = 0;
  next.known = TokenPrefix().extended(Ids{1, 2, 3, 5});
  EXPECT_THAT(run.add(next).error().text(), HasSubstr("which has 4"));
  next.logprobs.pop_back();
  EXPECT_THAT(run.add(next).error().text(), HasSubstr("2 tokens and 1 log-probabilities"));
  EXPECT_EQ(run.num_turns(), 1);
  EXPECT_EQ(run.num_tokens(), 4);
}

TEST_F(DrivenRunStory, ATurnThatContinuesAnEarlierOneSendsOnlyWhatFollows) {
  turn({1, 2}, {3, 4});
  turn({1, 2, 3, 4, 5}, {6});
  turn({1, 2, 3, 9}, {7});  // rewritten
  EXPECT_THAT(turns[1].prompt_tokens, ElementsAre(5));
  EXPECT_EQ(turns[1].sequence, 0);
  EXPECT_THAT(turns[2].prompt_tokens, ElementsAre(1, 2, 3, 9));
  EXPECT_EQ(turns[2].sequence, 1);
  EXPECT_EQ(run.num_tokens(), 6 + 5);
  EXPECT_EQ(run.num_sampled(), 4);
}

TEST_F(DrivenRunStory, ABranchTrainsTheTurnsOfTheGatewayAndNothingElse) {
  turn({1, 2}, {3, 4});
  turn({1, 2, 3, 4, 5}, {6}, 4);
  const auto made = samples_of(result({branch({1, 2, 3, 4, 5, 6, 7, 8}, {{2, 4}, {5, 8}})}));
  EXPECT_EQ(masks(made.arrays), "001101") << "7 and 8 were not made by the gateway";
  EXPECT_THAT(made.arrays.tokens, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_FLOAT_EQ(made.arrays.logprobs[3], -0.4F);
  EXPECT_FLOAT_EQ(made.arrays.logprobs[4], 0.0F);
  EXPECT_THAT(made.arrays.spans, ElementsAre(VersionSpan{PolicyVersion(3), 2, 4},
                                             VersionSpan{PolicyVersion(4), 5, 6}));
  EXPECT_EQ(made.arrays.num_turns, 2);
  EXPECT_EQ(num_unmatched, 0);
}

TEST_F(DrivenRunStory, TokensThatTheServerDoesNotMarkHaveMaskZero) {
  turn({1, 2}, {3, 4, 5});
  EXPECT_EQ(masks(samples_of(result({branch({1, 2, 3, 4, 5}, {{3, 4}})})).arrays), "00010");
  const auto none = samples_of(result({branch({1, 2, 3, 4, 5}, {})}));
  EXPECT_THAT(none.arrays.tokens, IsEmpty());
  EXPECT_EQ(none.num_left_out, 1);
  EXPECT_EQ(num_unmatched, 1);
}

TEST_F(DrivenRunStory, AMaskWithHolesHasASpanForEachTurnAndVersion) {
  ASSERT_TRUE(gateway.begin(name, 8, 9).ok());
  MemberTurn made = gateway.add(name, 8, {1, 2}, {3, 4, 5, 6, 7, 8});
  made.logprobs.assign(6, -0.5F);
  made.spans = {{PolicyVersion(3), 0, 3}, {PolicyVersion(4), 3, 6}};
  ASSERT_TRUE(run.add(made).ok());
  turn({1, 2, 3, 4, 5, 6, 7, 8, 9}, {10, 11, 12}, 4);
  const auto samples = samples_of(result({branch({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                                                 {{2, 3}, {4, 6}, {7, 8}, {9, 10}, {11, 12}})}));
  EXPECT_EQ(masks(samples.arrays), "001011010101");
  EXPECT_THAT(samples.arrays.spans,
              ElementsAre(VersionSpan{PolicyVersion(3), 2, 5}, VersionSpan{PolicyVersion(4), 5, 8},
                          VersionSpan{PolicyVersion(4), 9, 12}));
}

TEST_F(DrivenRunStory, AGroupOfMasksWithHolesIsNoLargerThanItsBound) {
  Tenant tenant = testing::a_tenant(1);
  tenant.seq_len = 2002;
  tenant.turns_max = 1;
  tenant.max_off_policy_steps = 0;
  Ids tokens(2000, 7);
  turn({1, 2}, tokens);
  std::vector<std::pair<int32_t, int32_t>> every_second;
  for (int32_t at = 2; at < 2002; at += 2) every_second.emplace_back(at, at + 1);
  tokens.insert(tokens.begin(), {1, 2});
  TrajectoryGroup group;
  group.members.push_back(samples_of(result({branch(tokens, every_second)})).arrays);
  EXPECT_EQ(std::ranges::count(group.members[0].sampled, 1), 1000);
  EXPECT_LE(static_cast<int64_t>(body_bytes_max(group)),
            group_bytes_max(tenant, GroupKind::kSampled));
}

TEST_F(DrivenRunStory, RewrittenAndRetriedTurnsDoNotTrain) {
  turn({1, 2}, {3, 4});
  turn({1, 2}, {8, 9});        // a retry
  turn({1, 2, 3, 5, 6}, {7});  // the answer was rewritten to 3, 5
  const auto made = samples_of(result({branch({1, 2, 3, 5, 6, 7}, {{2, 4}, {5, 6}})}));
  EXPECT_EQ(masks(made.arrays), "000001");
  EXPECT_EQ(num_unmatched, 2);
}

TEST_F(DrivenRunStory, ATurnThatTwoBranchesShareTrainsInTheFirst) {
  turn({1, 2}, {3});
  turn({1, 2, 3, 4}, {5});
  turn({1, 2, 3, 6}, {7});
  const auto made = samples_of(result(
      {branch({1, 2, 3, 4, 5}, {{2, 3}, {4, 5}}), branch({1, 2, 3, 6, 7}, {{2, 3}, {4, 5}})}));
  EXPECT_EQ(masks(made.arrays), "00101|00001");
  EXPECT_EQ(made.arrays.num_turns, 3);
}

TEST_F(DrivenRunStory, TwoTurnsWithTheSameTokensTrainInTwoBranches) {
  turn({1, 2}, {3});
  turn({1, 2}, {3});
  const auto made = samples_of(result({branch({1, 2, 3}, {{2, 3}}), branch({1, 2, 3}, {{2, 3}})}));
  EXPECT_EQ(masks(made.arrays), "001|001");
}

TEST_F(DrivenRunStory, BranchesThatNoTurnMadeGiveNoSample) {
  turn({1, 2}, {3});
  const auto made = samples_of(result({branch({5, 6, 7}, {{0, 3}}), branch({}, {})}));
  EXPECT_THAT(made.arrays.tokens, IsEmpty());
  EXPECT_EQ(made.num_branches, 2);
  EXPECT_EQ(made.num_left_out, 2);
}

TEST_F(DrivenRunStory, WithoutBranchesEachSequenceIsASample) {
  turn({1, 2}, {3});
  turn({1, 2, 3, 4}, {5});
  turn({9}, {8});
  EXPECT_EQ(masks(samples_of(result({})).arrays), "00101|01");
}

TEST_F(DrivenRunStory, MembersOfOneRunShareItsTurns) {
  turn({1, 2}, {3});
  turn({1, 2}, {4});
  MemberResult failed;
  failed.fault = "it broke";
  const auto samples = run.samples({result({branch({1, 2, 4}, {{2, 3}})}), failed,
                                    result({branch({1, 2, 3}, {{2, 3}})}), result({})});
  ASSERT_THAT(samples, SizeIs(4));
  EXPECT_THAT(samples[0]->arrays.tokens, ElementsAre(1, 2, 4));
  EXPECT_THAT(samples[1].error().text(), HasSubstr("it broke"));
  EXPECT_THAT(samples[2]->arrays.tokens, ElementsAre(1, 2, 3));
  EXPECT_THAT(samples[3].error().text(), HasSubstr("3 other members share its turns"));
  EXPECT_EQ(run.num_unmatched(samples), 0);
}

TEST_F(DrivenRunStory, KeptSetsAreThoseOfTheTokensThatTrain) {
  std::vector<std::byte> bytes;
  for (const int32_t token : {3, 4, 5}) append_kept(Ids{token, token + 10}, 100, bytes);
  turn({1, 2}, {3, 4, 5}, 3, Blob(std::move(bytes)));
  const auto made = samples_of(result({branch({1, 2, 3, 4, 5}, {{2, 3}, {4, 5}})}));
  EXPECT_EQ(masks(made.arrays), "00101");
  EXPECT_TRUE(check_kept(made.arrays.kept.bytes(), Ids{3, 5}, 100).ok());
}

struct RunTurnsStory : ::testing::Test {
  const MemberName name{1, 0, 0};
  RunTurns runs;
};

TEST_F(RunTurnsStory, TurnsAreCountedWhileTheyRun) {
  ASSERT_TRUE(runs.begin(name, 2, 2).ok());
  ASSERT_TRUE(runs.begin(name, 2, 2).ok());
  EXPECT_THAT(runs.begin(name, 2, 2).error().text(),
              HasSubstr("maximum context length is reached: the rollout has 2 turns"));
  runs.end(name, 2);
  EXPECT_TRUE(runs.begin(name, 2, 2).ok()) << "a request without a turn does not count";
  EXPECT_EQ(runs.num_begun(name), 3) << "but its number is not given again";
}

TEST_F(RunTurnsStory, TokensOfARunHaveABound) {
  ASSERT_TRUE(runs.begin(name, 5, 9).ok());
  runs.add(name, 5, {1}, {2});
  const auto full = runs.begin(name, kMemberTokensMax - 1, 9);
  EXPECT_THAT(full.error().text(), HasSubstr("maximum context length is reached"));
  EXPECT_EQ(full.error().code(), Code::kInvalid);
  EXPECT_TRUE(runs.begin(name, kMemberTokensMax - 2, 9).ok());
}

TEST_F(RunTurnsStory, RequestsThatRunCountInTheTokensOfARun) {
  ASSERT_TRUE(runs.begin(name, kMemberTokensMax - 9, 9).ok());
  EXPECT_THAT(runs.begin(name, 10, 9).error().text(), HasSubstr("requests that run may add"));
  ASSERT_TRUE(runs.begin(name, 9, 9).ok());
  EXPECT_FALSE(runs.begin(name, 1, 9).ok());
  runs.end(name, kMemberTokensMax - 9);
  EXPECT_TRUE(runs.begin(name, kMemberTokensMax - 9, 9).ok()) << "the failed one adds nothing";
  runs.add(name, 9, {1}, {2});
  EXPECT_TRUE(runs.begin(name, 7, 9).ok()) << "a turn counts with the tokens that it has";
  EXPECT_FALSE(runs.begin(name, 1, 9).ok());
}

TEST_F(RunTurnsStory, AClosedRunIsRefusedUntilManyMoreAreClosed) {
  ASSERT_TRUE(runs.begin(name, 2, 9).ok());
  runs.add(name, 2, {1}, {2});
  const MemberTurn last = runs.close(name);
  EXPECT_TRUE(last.is_last);
  EXPECT_EQ(last.index, 1);
  EXPECT_EQ(runs.begin(name, 1, 9).error().code(), Code::kCancelled);
  for (uint64_t i = 0; i + 1 < kClosedRunsMax; ++i) runs.close({2 + i, 0, 0});
  EXPECT_FALSE(runs.begin(name, 1, 9).ok()) << "at the bound";
  runs.close({1'000'000, 0, 0});
  EXPECT_TRUE(runs.begin(name, 1, 9).ok()) << "one past it";
  EXPECT_TRUE(runs.begin({1, 1, 0}, 1, 9).ok()) << "another attempt";
}

TEST_F(RunTurnsStory, ClosingTwiceChangesNothing) {
  runs.close(name);
  EXPECT_EQ(runs.close(name).index, 0);
  EXPECT_FALSE(runs.begin(name, 1, 9).ok());
}

}  // namespace
}  // namespace primerl
