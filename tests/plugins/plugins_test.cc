// Real shared libraries, loaded into this program.
#include "runtime/plugins/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "actors/catalog.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/messages/catalog.h"
#include "actors/messages/rollout.h"
#include "actors/plugin_build.h"
#include "actors/router/router.h"
#include "graph/base/files.h"
#include "graph/testing/node_runner.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace fs = std::filesystem;

std::string plugin(const std::string& name) {
  return fmt::format("{}/plugins/{}.so", PRIMERL_BINARY_DIR, name);
}

Catalog built_in() {
  Catalog catalog;
  catalog.actors = actor_catalog();
  catalog.messages = message_catalog();
  catalog.environments = environment_contracts();
  catalog.rewards = reward_contracts();
  return catalog;
}

/// The fault of one file.
std::string fault_of(const std::string& file) {
  Catalog catalog = built_in();
  const auto faults = add_plugins({file}, catalog);
  return faults.empty() ? "fits" : faults.front().error.text();
}

TEST(Plugins, AddActorsAndTheMessagesOfTheirPorts) {
  Catalog catalog = built_in();
  ASSERT_THAT(add_plugins({plugin("packer")}, catalog), IsEmpty());
  const Contract* pack = catalog.find_actor("pack");
  const Contract* unpack = catalog.find_actor("unpack");
  ASSERT_TRUE(pack != nullptr && unpack != nullptr);
  // A message type has one address in plugin and program; otherwise no edge would fit.
  EXPECT_EQ(pack->inputs[0].type, &message_type<TrajectoryGroup>());
  EXPECT_EQ(pack->outputs[0].type, unpack->inputs[0].type);
  EXPECT_EQ(catalog.messages.back(), pack->outputs[0].type);
  ASSERT_THAT(catalog.plugins, SizeIs(1));
  EXPECT_EQ(catalog.plugins[0].name, "packer");
  EXPECT_EQ(catalog.plugins[0].version, "2.1");
  EXPECT_NE(catalog.plugins[0].checksum, 0U);
}

TEST(Plugins, RunTheirActors) {
  Catalog catalog = built_in();
  ASSERT_THAT(add_plugins({plugin("packer")}, catalog), IsEmpty());
  const Contract& unpack = *catalog.find_actor("unpack");
  const auto options = unpack.options.make();
  EXPECT_NE(unpack.make(options.get()), nullptr);
}

TEST(Plugins, AddEnvironmentsRewardsAndRoutingPolicies) {
  Catalog catalog = built_in();
  ASSERT_THAT(add_plugins({plugin("chooser")}, catalog), IsEmpty());
  TenantEnvironment chosen{"echo", nullptr, &catalog.environments.back()};
  auto environment = make_environment(chosen);
  ASSERT_TRUE(environment.ok()) << environment.error().text();
  const auto task = *(*environment)->task(0, RandomStream(1));
  EXPECT_EQ(task.prompt, "echo>");
  auto reward = make_reward({"half", nullptr, &catalog.rewards.back()});
  ASSERT_TRUE(reward.ok()) << reward.error().text();
  EXPECT_EQ((*reward)->score(task, {"echo"}, 1).value(), 0.5);
  const OptionField* policy = catalog.find_actor("router")->options.find("policy");
  EXPECT_THAT(policy->constraint.choices, testing::Contains("first"));
  RouterOptions options;
  options.policy = "first";
  EXPECT_NE(catalog.find_actor("router")->make(&options), nullptr);
}

TEST(Plugins, KeepTheProgramsOwnCatalogAsItIs) {
  const Catalog before = built_in();
  Catalog catalog = before;
  ASSERT_THAT(add_plugins({plugin("packer"), plugin("chooser")}, catalog), IsEmpty());
  EXPECT_EQ(before.actors.size() + 2, catalog.actors.size());
  EXPECT_THAT(before.find_actor("router")->options.find("policy")->constraint.choices,
              testing::Not(testing::Contains("first")));
}

TEST(Plugins, UnusableOnesAreRefusedWithTheReason) {
  EXPECT_THAT(fault_of("/nowhere/lib.so"), HasSubstr("does not exist"));
  EXPECT_THAT(fault_of(plugin("no_plugin")), HasSubstr("no plugin of primerl-graph"));
  EXPECT_THAT(fault_of(plugin("without_entry")), HasSubstr("does not define primerl_plugin()"));
  EXPECT_THAT(fault_of(plugin("unknown_symbol")), HasSubstr("no_program_has_this"));
  EXPECT_THAT(fault_of(plugin("throws")), HasSubstr("an exception left its primerl_plugin()"));
  EXPECT_THAT(fault_of(plugin("throws")), HasSubstr("not today"));
  EXPECT_THAT(fault_of(plugin("nameless")), HasSubstr("it names itself ''"));
  EXPECT_THAT(fault_of(plugin("taken_name")), HasSubstr("an actor 'router'"));
}

TEST(Plugins, MayHaveClassesOfTheSameName) {
  Catalog catalog = built_in();
  ASSERT_THAT(add_plugins({plugin("one_item"), plugin("other_item")}, catalog), IsEmpty());
  const MessageType* one = catalog.find_actor("takes_one")->inputs[0].type;
  const MessageType* other = catalog.find_actor("takes_other")->inputs[0].type;
  EXPECT_EQ(one->name, "ItemOfOne");
  EXPECT_EQ(other->name, "ItemOfOther");
  EXPECT_NE(one->schema, other->schema);
}

TEST(Plugins, AreNotLoadedFromAPathThatTheLoaderWouldRead) {
  EXPECT_THAT(fault_of(""), HasSubstr("has no name"));
  EXPECT_THAT(fault_of(PRIMERL_BINARY_DIR "/$LIB/packer.so"), HasSubstr("'$'"));
  EXPECT_THAT(fault_of(plugin("packer") + std::string("\0x", 2)), HasSubstr("zero byte"));
}

TEST(Plugins, ReportAllFaultsInTheOrderOfTheList) {
  Catalog catalog = built_in();
  const auto faults = add_plugins(
      {plugin("taken_name"), plugin("packer"), plugin("throws"), plugin("packer")}, catalog);
  ASSERT_THAT(faults, SizeIs(3));
  EXPECT_EQ(faults[0].file, 0U);
  EXPECT_EQ(faults[1].file, 2U);
  EXPECT_EQ(faults[2].file, 3U);
  EXPECT_THAT(faults[2].error.text(), HasSubstr("there is another plugin 'packer'"));
}

TEST(Plugins, AreCheckedBeforeAnyOfTheirCodeRuns) {
  // The same library with another version in its build section. If it were loaded, it would fail
  // for another reason.
  const ScratchFolder scratch;
  std::string bytes = *read_text_file(plugin("throws"));
  const size_t at = bytes.find(std::string(kPluginMagic) + '\0');
  ASSERT_NE(at, std::string::npos);
  bytes[at + offsetof(PluginBuild, version)] = '9';
  const fs::path file = scratch.path() / "throws.so";
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_THAT(fault_of(file.string()), HasSubstr("it was built for primerl-graph 9.1.0"));
}

}  // namespace
}  // namespace primerl
