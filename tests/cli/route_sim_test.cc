// `primerl-graph route-sim`, run as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>

#include "actors/router/policies/policy.h"
#include "tests/cli/program.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string sessions() { return source_path("tests/cli/traces/sessions.jsonl"); }

TEST(RouteSim, ATableOfEveryPolicy) {
  const auto end = run_graph_program({"route-sim", sessions()});
  EXPECT_EQ(end.code, 0) << end.err;
  EXPECT_THAT(end.err, IsEmpty());
  const std::string golden = source_path("tests/cli/golden/route_sim.txt");
  if (std::getenv("PRIMERL_UPDATE_GOLDEN") != nullptr) write_text(golden, end.out);
  EXPECT_EQ(end.out, *read_text_file(golden));
  for (const auto& policy : route_policies()) EXPECT_THAT(end.out, HasSubstr("\n" + policy.name));
}

TEST(RouteSim, JsonHoldsTheSame) {
  const auto end = run_graph_program(
      {"route-sim", sessions(), "--policy", "cost", "--policy", "cache_aware", "--json"});
  ASSERT_EQ(end.code, 0) << end.err;
  const auto json = parse_json(end.out, "output");
  ASSERT_TRUE(json.ok());
  EXPECT_EQ(*json->get_string("schema"), "primerl.route_sim/1");
  EXPECT_EQ(*json->get_int("turns"), 72);
  const auto& policies = json->find("policies")->as_array();
  ASSERT_EQ(policies.size(), 2U);
  EXPECT_EQ(*policies[0].get_string("policy"), "cost");
  EXPECT_GT(*policies[1].get_double("hit_rate"), *policies[0].get_double("hit_rate"));
}

TEST(RouteSim, AWrittenTraceGivesTheSameTable) {
  ScratchFolder scratch;
  const std::string written = (scratch.path() / "written.jsonl").string();
  const auto one = run_graph_program({"route-sim", sessions(), "--write", written});
  const auto other = run_graph_program({"route-sim", written});
  EXPECT_EQ(other.code, 0) << other.err;
  EXPECT_EQ(one.out, other.out);
}

TEST(RouteSim, WritesOverNothingButAFileOfItsOwn) {
  ScratchFolder scratch;
  const std::string copy = (scratch.path() / "copy.jsonl").string();
  ASSERT_EQ(run_graph_program({"route-sim", sessions(), "--write", copy}).code, 0);
  const auto itself = run_graph_program({"route-sim", copy, "--write", copy});
  EXPECT_EQ(itself.code, 1);
  EXPECT_THAT(itself.err, HasSubstr("is the trace that is read"));
  const std::string pipe = (scratch.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& path : {scratch.path().string(), pipe}) {
    const auto end = run_graph_program({"route-sim", copy, "--write", path});
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.err, HasSubstr("'" + path + "' is no file"));
  }
  EXPECT_EQ(run_graph_program({"route-sim", copy}).code, 0) << "it is still there";
}

TEST(RouteSim, AFaultHasItsPositionAndASuggestion) {
  ScratchFolder scratch;
  const std::string file = (scratch.path() / "s.jsonl").string();
  write_text(file, "{\"session\":1,\"arival_s\":0}\n");
  const auto key = run_graph_program({"route-sim", file});
  EXPECT_EQ(key.code, 2);
  EXPECT_EQ(key.err,
            "error: " + file + ":1: unknown key 'arival_s'\n  help: did you mean 'arrival_s'?\n");
  const auto policy = run_graph_program({"route-sim", file, "--policy", "cash_aware"});
  EXPECT_EQ(policy.code, 3);
  EXPECT_THAT(policy.err, HasSubstr("did you mean 'cache_aware'?"));
  const auto twice = run_graph_program({"route-sim", file, "--policy", "cost", "--policy", "cost"});
  EXPECT_EQ(twice.code, 3);
  EXPECT_THAT(twice.err, HasSubstr("policy 'cost' is named twice"));
  EXPECT_EQ(run_graph_program({"route-sim", file + ".none"}).code, 2);
  EXPECT_EQ(run_graph_program({"route-sim", scratch.path().string()}).code, 2);
  const auto engines = run_graph_program({"route-sim", file, "--engines", "1025"});
  EXPECT_EQ(engines.code, 3);
  EXPECT_EQ(run_graph_program({"route-sim", sessions(), "--engines", "1024"}).code, 0);
}

}  // namespace
}  // namespace primerl
