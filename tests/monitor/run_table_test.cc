#include "runtime/monitor/run_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string nodes_shown(const std::vector<std::string>& names) {
  Json nodes = Json::array();
  for (const auto& name : names) nodes.push_back(Json::object().set("name", name));
  Json processes = Json::array();
  processes.push_back(Json::object()
                          .set("name", "main")
                          .set("state", "running")
                          .set("nodes", std::move(nodes))
                          .set("engines", Json::array()));
  return run_table(Json::object()
                       .set("state", "running")
                       .set("name", "demo")
                       .set("phase", "training")
                       .set("processes", std::move(processes)));
}

TEST(RunTable, ShowsReplicasAsARange) {
  std::vector<std::string> names{"router"};
  for (int i = 0; i < 65; ++i) names.push_back("env.main#" + std::to_string(i));
  names.push_back("env.other#0");
  names.push_back("trainer");
  const auto text = nodes_shown(names);
  EXPECT_THAT(text, HasSubstr("router env.main#0..#64 env.other#0 trainer"));
  EXPECT_THAT(text, Not(HasSubstr("#63")));
}

TEST(RunTable, ShowsNodesWithoutReplicasByName) {
  EXPECT_THAT(nodes_shown({"prefill", "decode", "decode"}), HasSubstr("prefill decode decode"));
  EXPECT_THAT(nodes_shown({"prefill#0", "decode#0", "prefill#1", "decode#1"}),
              HasSubstr("prefill#0 decode#0 prefill#1 decode#1"));
}

}  // namespace
}  // namespace primerl
