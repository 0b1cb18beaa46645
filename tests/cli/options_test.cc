// `primerl-graph options`, run as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace primerl {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

Json parsed_options(const std::string& text) {
  auto json = parse_json(text, "output");
  EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().text()) << "\n" << text;
  return json.ok() ? *json : Json();
}

TEST(OptionsCommand, ListsEverythingThatHasOptions) {
  const auto all = run_graph_program({"options"});
  EXPECT_EQ(all.code, 0);
  for (const std::string name :
       {"graph", "tenant", "tenant.sampling", "tenant.loss", "actor.router",
        "resource.engine.torch", "resource.learner.torch.loss", "environment.reverse_text",
        "reward.exact", "place", "edge"})
    EXPECT_THAT(all.out, testing::ContainsRegex("(^|\n)" + name + " +[^ ]")) << name;
}

TEST(OptionsCommand, ShowsTypeRangeUnitDefaultAndDoc) {
  EXPECT_THAT(run_graph_program({"options", "tenant.sampling"}).out,
              AllOf(StartsWith("tenant.sampling: how tokens are sampled\n"),
                    HasSubstr("\n  in [tenant.NAME] sampling = { ... }\n"),
                    HasSubstr("\n  top_p = 1.0  # number, above 0 and at most 1: sample from the "
                              "likeliest tokens with this total probability\n"),
                    HasSubstr("\n  max_tokens = 16  # integer, from 1 to 1048576 tokens: ")));
  EXPECT_THAT(run_graph_program({"options", "tenant"}).out,
              AllOf(HasSubstr("  sampling.top_p = 1.0  # "),
                    HasSubstr("  rollout_timeout = \"2m\"  # duration, above 0 s: ")));
  EXPECT_THAT(run_graph_program({"options", "trace"}).out,
              HasSubstr("  bytes_max = \"8GiB\"  # size, at least 4MiB: "));
}

TEST(OptionsCommand, TakesAPartOfANameAndTheNameOfAnOption) {
  const auto environment = run_graph_program({"options", "find_in_pages"});
  EXPECT_THAT(environment.out, AllOf(StartsWith("environment.find_in_pages: "),
                                     HasSubstr("  page_bytes = 256  # size, from 32B to 16MiB: ")));
  const auto loss = run_graph_program({"options", "loss"}).out;
  for (const std::string name :
       {"tenant.loss: ", "resource.learner.torch.loss: ", "resource.learner.scripted.loss: "})
    EXPECT_THAT(loss, HasSubstr(name));
  EXPECT_THAT(run_graph_program({"options", "engine"}).out,
              AllOf(HasSubstr("resource.engine.torch: "), HasSubstr("  debug.check_finite = ")));
  const auto option = run_graph_program({"options", "max_inflight"});
  EXPECT_EQ(option.code, 0);
  EXPECT_THAT(option.out, AllOf(HasSubstr("actor.rollout: "), HasSubstr("  max_inflight = 64"),
                                testing::Not(HasSubstr("attempts_max"))));
}

TEST(OptionsCommand, SuggestsANearName) {
  for (const auto& [word, near] :
       {std::pair("revers_text", "reverse_text"), std::pair("tenant.samplng", "tenant.sampling"),
        std::pair("max_inflght", "max_inflight")}) {
    const auto none = run_graph_program({"options", word});
    EXPECT_EQ(none.code, 3);
    EXPECT_THAT(none.err, HasSubstr(fmt::format("did you mean '{}'?", near)));
  }
  EXPECT_THAT(run_graph_program({"options", "nothing_like_it"}).err,
              HasSubstr("`primerl-graph options` lists"));
}

TEST(OptionsCommand, PrintsJson) {
  const Json all = parsed_options(run_graph_program({"options", "--json"}).out);
  EXPECT_EQ(*all.get_string("schema"), "primerl.options/1");
  EXPECT_GE(all.find("groups")->as_array().size(), 30U);
  const Json one = parsed_options(run_graph_program({"options", "trace", "--json"}).out);
  ASSERT_EQ(one.find("groups")->as_array().size(), 1U);
  const Json& group = one.find("groups")->as_array().front();
  EXPECT_EQ(*group.get_string("where"), "[trace]");
  for (const Json& option : group.find("options")->as_array()) {
    if (*option.get_string("name") != "segment_bytes") continue;
    EXPECT_EQ(*option.get_string("type"), "size");
    EXPECT_EQ(*option.get_string("default"), "\"8MiB\"");
    EXPECT_EQ(*option.get_string("range"), "from 2MiB to 1GiB");
    EXPECT_EQ(*option.get_string("unit"), "bytes");
    EXPECT_EQ(option.find("max")->as_double(), 1 << 30);
    return;
  }
  FAIL() << "no option 'segment_bytes'";
}

}  // namespace
}  // namespace primerl
