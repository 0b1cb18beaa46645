#include "runtime/outside/verifiers/episode_assembly.h"

#include <gmock/gmock.h>

#include "runtime/outside/verifiers/msgpack_json.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

struct EpisodeAssemblyStory : ::testing::Test {
  std::string add(const std::string& delta) { return add_json(*parse_json(delta, "delta")); }
  std::string add_json(const Json& delta) {
    const Status added = assembly.add(delta);
    return added.ok() ? "" : added.error().message();
  }
  std::string finish(const std::string& traces) {
    Json reply = *parse_json(R"({"success":true,"head":{"id":"e","ok":true}})", "");
    const auto whole = assembly.finish(reply.set("traces", *parse_json(traces, "")));
    return whole.ok() ? whole->find("episode")->dump() : whole.error().message();
  }
  const Json& routing_of(const Json& whole) {
    return *whole.find("episode")->find("traces")->as_array()[0].find("nodes")->as_array()[0].find(
        "routed_experts");
  }
  EpisodeAssembly assembly;
};

TEST_F(EpisodeAssemblyStory, DeltasGrowATrace) {
  EXPECT_EQ(add(R"({"trace":"t","open":{"id":"t","version":1},"nodes":[{"n":0}],"strange":1})"),
            "");
  EXPECT_EQ(add(R"({"trace":"t","pending":[{"role":"tool"}]})"), "");
  EXPECT_EQ(add(R"({"trace":"t","nodes":[{"n":1,"strange":2}],"calls":[{"node":1}],)"
                R"("set":{"ok":true,"rewards":{"a":1}}})"),
            "");
  EXPECT_EQ(add(R"({"trace":"t","set":{"rewards":{"b":2}},"links":{"0":[{"node":1}]}})"), "");
  EXPECT_EQ(finish(R"([{"id":"t","nodes":2,"calls":1}])"),
            R"({"id":"e","ok":true,"traces":[{"id":"t","version":1,"nodes":[{"n":0,)"
            R"("semantic_parents":[{"node":1}]},{"n":1,"strange":2}],"calls":[{"node":1}],)"
            R"("errors":[],"extra_usage":[],"request_rewrites":[],"response_rewrites":[],)"
            R"("pending":[],"ok":true,"rewards":{"b":2}}]})");
}

TEST_F(EpisodeAssemblyStory, KeysOfATraceHaveABound) {
  const auto keys = [](size_t count) {
    Json many = Json::object();
    for (size_t i = 0; i < count; ++i)
      many.as_object().emplace_back(fmt::format("key{}", i), Json(1));
    return many.dump();
  };
  // An opened trace has its id and six lists, one of them of messages in flight.
  add(R"({"trace":"t","open":{"id":"t"}})");
  EXPECT_EQ(add(R"({"trace":"t","set":)" + keys(1000) + "}"), "");
  EXPECT_EQ(add(R"({"trace":"t","set":)" + keys(1000) + "}"), "") << "they are known";
  EXPECT_THAT(add(R"({"trace":"t","set":)" + keys(1024) + "}"),
              HasSubstr("a trace has more than 1024 keys"));
  EXPECT_EQ(add(R"({"trace":"u","open":)" + keys(2000) + "}"), "");
  EXPECT_THAT(add(R"({"trace":"u","set":{"key0":1}})"),
              HasSubstr("a trace has more than 1024 keys"));
}

TEST_F(EpisodeAssemblyStory, ADiscardedTraceIsGoneAndMayBeginAgain) {
  add(R"({"trace":"t","open":{"id":"t"},"nodes":[{}]})");
  EXPECT_EQ(add(R"({"trace":"t","discard":true})"), "");
  EXPECT_EQ(assembly.num_traces(), 0U);
  EXPECT_EQ(add(R"({"trace":"gone","discard":true})"), "");
  EXPECT_THAT(add(R"({"trace":"t","nodes":[{}]})"), HasSubstr("has no map 'open'"));
  EXPECT_EQ(add(R"({"trace":"t","open":{"id":"t"}})"), "");
  EXPECT_THAT(finish(R"([{"id":"t","nodes":0,"calls":0}])"), HasSubstr("\"nodes\":[]"));
}

TEST_F(EpisodeAssemblyStory, CountsMustBeEqual) {
  add(R"({"trace":"t","open":{"id":"t"},"nodes":[{},{}],"calls":[{}]})");
  const EpisodeAssembly before = assembly;
  EXPECT_EQ(finish(R"([{"id":"t","nodes":3,"calls":1}])"),
            "the deltas of trace 't' have 2 nodes, the reply counts 3");
  assembly = before;
  EXPECT_EQ(finish(R"([{"id":"t","nodes":2,"calls":0}])"),
            "the deltas of trace 't' have 1 calls, the reply counts 0");
  assembly = before;
  EXPECT_THAT(finish(R"([{"id":"u","nodes":2,"calls":1}])"), HasSubstr("'u', which no delta"));
  assembly = before;
  EXPECT_THAT(finish(R"([{"id":"t","nodes":2,"calls":1},{"id":"t","nodes":2,"calls":1}])"),
              HasSubstr("'t', which no delta"));
}

TEST_F(EpisodeAssemblyStory, ADeltaThatDoesNotFitIsRefused) {
  EXPECT_NE(add("[]"), "");
  EXPECT_NE(add("{}"), "");
  EXPECT_THAT(add(R"({"trace":"t","open":3})"), HasSubstr("no map 'open'"));
  EXPECT_EQ(add(R"({"trace":"t","open":{},"nodes":[{"semantic_parents":1}]})"), "");
  EXPECT_THAT(add(R"({"trace":"t","nodes":{}})"), HasSubstr("'nodes' of a delta is an object"));
  EXPECT_THAT(add(R"({"trace":"t","links":{"1":[]}})"),
              HasSubstr("changes node 1, the trace has 1"));
  EXPECT_THAT(add(R"({"trace":"t","links":{"x":[]}})"), HasSubstr("changes node x"));
  EXPECT_THAT(add(R"({"trace":"t","links":{"-1":[]}})"), HasSubstr("changes node -1"));
  EXPECT_THAT(add(R"({"trace":"t","links":{"0":[1]}})"), HasSubstr("is a number, not a list"));
  EXPECT_THAT(add(R"({"trace":"t","set":{"nodes":1}})"),
              HasSubstr("sets 'nodes', which is a list"));
  EXPECT_THAT(add(R"({"trace":"t","set":[]})"), HasSubstr("not a map"));
  EXPECT_THAT(add(R"({"trace":"t","routing_repairs":{"0":{}}})"), HasSubstr("without routing"));
}

Json routed(const std::string& dtype, const std::vector<int64_t>& shape, const std::string& data) {
  return write_wire_array({dtype, shape, data});
}

TEST_F(EpisodeAssemblyStory, ARepairReplacesTheLastRowAndMayWidenIt) {
  const Json node =
      Json::object().set("routed_experts", routed("uint8", {2, 1, 2}, std::string("\1\2\3\4")));
  Json open = *parse_json(R"({"trace":"t","open":{"id":"t"}})", "");
  ASSERT_EQ(add_json(open.set("nodes", Json::Array{node})), "");
  const auto repair = [](const Json& row) {
    return Json::object().set("trace", "t").set("routing_repairs", Json::object().set("0", row));
  };
  EXPECT_EQ(add_json(repair(routed("uint8", {1, 1, 2}, std::string("\5\6")))), "");
  EXPECT_EQ(add_json(repair(routed("uint16", {1, 1, 2}, std::string("\x7\0\x2c\1", 4)))), "");
  EXPECT_EQ(add_json(repair(routed("uint8", {1, 1, 2}, std::string("\x8\x9")))), "");
  EXPECT_THAT(add_json(repair(routed("uint8", {2, 1, 2}, "abcd"))),
              HasSubstr("shape [2, 1, 2] is of routing of shape [2, 1, 2]"));
  EXPECT_THAT(add_json(repair(routed("uint8", {1, 2, 1}, "ab"))), HasSubstr("shape [1, 2, 1]"));
  EXPECT_EQ(add_json(repair(routed("float32", {1, 1, 2}, "abcdefgh"))),
            "a routing repair changes uint16 to float32");
  const auto whole =
      assembly.finish(*parse_json(R"({"head":{},"traces":[{"id":"t","nodes":1,"calls":0}]})", ""));
  const WireArray rows = *read_wire_array(routing_of(*whole));
  EXPECT_EQ(rows.dtype, "uint16");
  EXPECT_EQ(rows.shape, (std::vector<int64_t>{2, 1, 2}));
  EXPECT_EQ(rows.data, std::string("\1\0\2\0\x8\0\x9\0", 8));
}

}  // namespace
}  // namespace primerl
