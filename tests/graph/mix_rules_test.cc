// Several environments of one tenant, and curricula: what is refused, and where; what a plan has.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/graph/test_catalog.h"

namespace primerl::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The demo with these lines instead of its environment.
std::string demo_with(const std::string& lines) {
  return replaced(demo_text(), "environment = { name = \"reverse_text\" }", lines);
}
/// With items of `environments`, each "{ ... }".
std::string mix_of(const std::string& items) { return demo_with("environments = [" + items + "]"); }

constexpr const char* kTwo =
    "{ environment = { name = \"reverse_text\" }, weight = 3 }, "
    "{ name = \"copies\", environment = { name = \"copy\" } }";

std::string findings_of(const std::string& text) { return findings(load_text(text)); }

TEST(MixRules, APlanHasTheTenantAsEachEnvironmentSeesIt) {
  const auto graph = load_text(mix_of(
      "{ environment = { name = \"reverse_text\" }, weight = 3, turns_max = 9 }, "
      "{ name = \"copies\", environment = { name = \"copy\" }, sampling = { max_tokens = 99 }, "
      "reward = { name = \"half\" }, seq_len = 100, environment_timeout = \"40s\" }"));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const Tenant& tenant = graph.plan->tenants[0];
  ASSERT_EQ(tenant.num_environments(), 2U);
  const Tenant& first = tenant.in_environment(0);
  EXPECT_EQ(first.label, "reverse_text");
  EXPECT_EQ(first.weight, 3);
  EXPECT_EQ(first.turns_max, 9);
  EXPECT_EQ(first.sampling.max_tokens, 16);
  EXPECT_EQ(first.seq_len, 256) << "the model's limit";
  EXPECT_EQ(first.group_size, 8);
  EXPECT_EQ(first.slot, tenant.slot);
  const Tenant& second = tenant.in_environment(1);
  EXPECT_EQ(second.environment.name, "copy");
  EXPECT_EQ(second.weight, 1);
  EXPECT_EQ(second.seq_len, 100);
  EXPECT_EQ(second.sampling.max_tokens, 99);
  ASSERT_EQ(second.rewards.size(), 1U);
  EXPECT_EQ(second.rewards[0].label, "copies/half");
  EXPECT_EQ(tenant.rewards.size(), 1U) << "those of all";
  EXPECT_EQ(tenant.turns_max, 9) << "limits hold for all";
  EXPECT_EQ(tenant.sampling.max_tokens, 99);
  EXPECT_EQ(tenant.environment_timeout, Duration::seconds(40));
}

TEST(MixRules, TheResolvedTextIsTheSamePlan) {
  const auto graph = load_text(mix_of(
      "{ environment = { name = \"reverse_text\" }, filters = { truncated = true } }, "
      "{ name = \"copies\", weight = 7, environment = { name = \"copy\" }, reward = [{ name = "
      "\"half\" }, { name = \"half\", weight = 2.0 }], curriculum = { easy_threshold = 0.9, pools "
      "= [{ threshold = 0.5, weight = 2.0 }], stages = [{ most = 3.0, groups = 4 }, {}] } }"));
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  // Each text has a model folder of its own.
  const auto without_folder = [](const CheckedGraph& checked) {
    return replaced(checked.plan->resolved_toml, checked.plan->models[0].path, "model");
  };
  const auto again = load_text(without_folder(graph));
  ASSERT_NE(again.plan, nullptr) << findings(again) << graph.plan->resolved_toml;
  EXPECT_EQ(without_folder(again), without_folder(graph));
  const Tenant& copies = again.plan->tenants[0].in_environment(1);
  EXPECT_EQ(copies.weight, 7);
  EXPECT_EQ(copies.curriculum.rows, 20) << "those of its data set";
  ASSERT_EQ(copies.curriculum.pools.size(), 1U);
  EXPECT_EQ(copies.curriculum.pools[0].weight, 2);
  ASSERT_EQ(copies.curriculum.stages.size(), 2U);
  EXPECT_EQ(copies.curriculum.stages[0].groups, 4);
  EXPECT_TRUE(again.plan->tenants[0].in_environment(0).filters.truncated);
  EXPECT_FALSE(again.plan->tenants[0].in_environment(0).curriculum.is_on());
}

TEST(MixRules, BadItemsAreRefusedWhereTheyAre) {
  EXPECT_THAT(codes_of(mix_of(kTwo)), IsEmpty());
  EXPECT_THAT(codes_of(mix_of("")), ElementsAre("G085"));
  EXPECT_THAT(codes_of(demo_with("environments = 3")), ElementsAre("G021"));
  EXPECT_THAT(codes_of(mix_of("3")), ElementsAre("G021"));
  EXPECT_THAT(codes_of(mix_of("{ weight = 2 }")), ElementsAre("G066"));
  const std::string one_more = "environment = { name = \"copy\" }\n";
  EXPECT_THAT(codes_of(demo_with(one_more + "environments = [" + kTwo + "]")), ElementsAre("G085"));
  const auto one = [](const std::string& keys) {
    return findings_of(mix_of("{ environment = { name = \"copy\" }, " + keys + " }"));
  };
  EXPECT_EQ(one("weight = 1000"), "");
  EXPECT_THAT(one("weight = 1001"), HasSubstr("graph.toml:6:61: error[G023]: 'weight' of "
                                              "environments[0] of tenant 'main' is 1001"));
  EXPECT_THAT(one("weight = 0"), HasSubstr("error[G023]"));
  EXPECT_THAT(one("weight = 0.5"), HasSubstr("error[G021]"));
  EXPECT_THAT(one("group_size = 4"), HasSubstr("has no option 'group_size'"));
  for (const char* name : {"all", "trained"})
    EXPECT_THAT(one(fmt::format("name = \"{}\"", name)),
                HasSubstr("the word of metrics for all environments"));
  EXPECT_THAT(one("name = \"a/b\""), HasSubstr("which metrics cannot have"));
  EXPECT_THAT(one("seq_len = 5000"), HasSubstr("is more than that of tenant 'main', 2048"));
  EXPECT_THAT(one("eval = { interval = 2 }"), HasSubstr("has no option 'interval'"));
  EXPECT_THAT(findings_of(mix_of("{ environment = { name = \"copy\" } }, "
                                 "{ environment = { name = \"copy\" } }")),
              HasSubstr("environments[1] of tenant 'main' is called 'copy', as another one"));
}

TEST(MixRules, EvaluationsAndEpochsCountTheRowsOfAll) {
  const auto with = [](const std::string& lines) {
    return load_text(replaced(mix_of("{ environment = { name = \"copy\" } }, { name = \"more\", "
                                     "environment = { name = \"copy\" }, eval = { rows = 3 } }"),
                              "max_steps = 200", lines));
  };
  const auto graph = with("eval = { interval = 10 }");
  ASSERT_NE(graph.plan, nullptr) << findings(graph);
  const Tenant& tenant = graph.plan->tenants[0];
  EXPECT_EQ(tenant.eval.rows, 8);
  EXPECT_EQ(tenant.in_environment(0).eval.rows, 5);
  EXPECT_EQ(tenant.in_environment(1).eval.rows, 3);
  EXPECT_EQ(tenant.in_environment(1).eval.interval, 10);
  EXPECT_THAT(findings(with("epochs = 2")), HasSubstr("error[G075]"));
}

TEST(MixRules, ACurriculumNeedsRowsAndNumbersThatFitTogether) {
  const auto of = [](const std::string& environment, const std::string& curriculum,
                     const std::string& more = "") {
    return findings_of(demo_with("environment = { name = \"" + environment +
                                 "\" }\ncurriculum = " + curriculum + "\n" + more));
  };
  EXPECT_EQ(of("copy", "{ easy_threshold = 1.0, hard_threshold = 0.0 }"), "");
  EXPECT_THAT(of("copy", "{ easy_threshold = 0.5, hard_threshold = 0.5 }"),
              HasSubstr("'curriculum.easy_threshold' 0.5 of environment 'copy' of tenant 'main' is "
                        "not above hard_threshold 0.5"));
  EXPECT_THAT(of("reverse_text", "{ easy_threshold = 1.0 }"),
              HasSubstr("does not say how many rows it has"));
  EXPECT_EQ(of("reverse_text", "{ easy_threshold = 1.0, rows = 50 }"), "");
  EXPECT_THAT(of("copy", "{ easy_threshold = 1.0, rows = 19 }"),
              HasSubstr("'curriculum.rows' is 19, but environment 'copy' of tenant 'main' has 20"));
  EXPECT_THAT(of("copy", "{ easy_threshold = 1.0 }", "epochs = 2"), HasSubstr("counts 'epochs'"));
  EXPECT_EQ(of("copy", "{ pools = [{ threshold = 0.2 }, { threshold = 0.4 }] }"), "");
  EXPECT_THAT(of("copy", "{ pools = [{ threshold = 0.4 }, { threshold = 0.4 }] }"),
              HasSubstr("the threshold 0.4 of pool 1"));
  EXPECT_THAT(of("copy", "{ easy_threshold = 1.0, pools = [{ threshold = 2.0 }] }"),
              HasSubstr("is not between -2000000 and 1\n"));
  EXPECT_THAT(of("copy", "{ pools = [{ threshold = 0.4, weight = -1.0 }] }"),
              HasSubstr("error[G023]: 'weight' of 'pools[0]' of 'curriculum' of tenant 'main'"));
  EXPECT_THAT(of("copy", "{ pools = [{ treshold = 0.4 }] }"),
              HasSubstr("did you mean 'threshold'"));
  EXPECT_THAT(of("copy", "{ pools = [3] }"), HasSubstr("error[G021]"));
  EXPECT_THAT(of("copy", "{ easy_threshold = 1.0, unseen_weight = 0.0 }"),
              HasSubstr("no row of environment 'copy' of tenant 'main' has a weight"));
  EXPECT_EQ(of("copy", "{ stages = [{ most = 1.0 }, { most = 2.0 }] }"), "");
  EXPECT_THAT(of("copy", "{ stages = [{ most = 2.0 }, { most = 2.0 }] }"),
              HasSubstr("stage 1 of environment 'copy'"));
  EXPECT_THAT(of("copy", "{ easy_threshold = 1.0, field = \"level\" }"),
              HasSubstr("has no effect without 'stages'"));
  EXPECT_THAT(of("reverse_text", "{ rows = 9, field = \"level\", stages = [{}] }"),
              HasSubstr("has no rows with fields"));
}

TEST(MixRules, ADrivenEnvironmentHasNoRewardsInAMixToo) {
  EXPECT_THAT(findings_of(mix_of("{ environment = { name = \"copy\" } }, { environment = { name = "
                                 "\"driven\" }, reward = { name = \"half\" } }")),
              HasSubstr("plays and scores whole rollouts"));
}

TEST(MixRules, ADrivenEnvironmentHasALimitOfItsOwn) {
  const std::string copy = "{ environment = { name = \"copy\" }, rollout_timeout = \"30s\" }, ";
  const auto of = [&](const std::string& timeout) {
    return findings_of(mix_of(copy + "{ environment = { name = \"driven\" }" + timeout + " }"));
  };
  EXPECT_THAT(of(", rollout_timeout = \"40s\""),
              AllOf(HasSubstr("[G090]"),
                    HasSubstr("'rollout_timeout' of environment 'driven' has no effect"),
                    HasSubstr("write run_timeout in its 'environment'")));
  EXPECT_THAT(of(""), Not(HasSubstr("'rollout_timeout' of")));
  EXPECT_THAT(findings_of(demo_with("rollout_timeout = \"40s\"\nenvironments = [" + copy +
                                    "{ environment = { name = \"driven\" } }]")),
              Not(HasSubstr("'rollout_timeout' of")))
      << "the tenant's is for the other environment";
}

}  // namespace
}  // namespace primerl::testing
