#include "runtime/plugins/plugin_contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/catalog.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/messages/catalog.h"
#include "actors/messages/rollout.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct NoOptions {};

/// A message with a name that is taken.
struct OtherTask {
  static constexpr std::string_view kName = "Task";
  static constexpr uint32_t kVersion = 1;
  uint64_t id = 0;
  template <class F>
  static void fields(F& f) {
    f("id", &OtherTask::id);
  }
};

template <class M>
class Drop final : public Actor {
 public:
  explicit Drop(const NoOptions&) {}
  static Contract contract(std::string name = "drop") {
    return ContractOf<Drop, NoOptions>(std::move(name), "drops what comes")
        .in("message", &Drop::on_message, "anything");
  }

 private:
  Status on_message(const M&) { return ok(); }
};

Catalog built_in() {
  Catalog catalog;
  catalog.actors = actor_catalog();
  catalog.messages = message_catalog();
  catalog.environments = environment_contracts();
  catalog.rewards = reward_contracts();
  return catalog;
}

/// The only fault of a plugin, or "fits".
std::string fault_of(const Plugin& plugin, Catalog catalog = built_in()) {
  const size_t num_actors = catalog.actors.size();
  const ListedPlugin listed{3, &plugin};
  const auto faults = add_contents({&listed, 1}, catalog);
  if (faults.empty()) return "fits";
  EXPECT_THAT(faults, SizeIs(1));
  EXPECT_EQ(faults.front().file, 3U);
  EXPECT_EQ(catalog.actors.size(), num_actors) << "half of the plugin was added";
  return faults.front().error.text();
}

Plugin a_plugin() {
  Plugin plugin;
  plugin.name = "mine";
  return plugin;
}

TEST(PluginContents, AreAddedToTheCatalogWithTheirMessages) {
  Plugin plugin = a_plugin();
  plugin.actors = {Drop<TrajectoryGroup>::contract()};
  Catalog catalog = built_in();
  const size_t num_messages = catalog.messages.size();
  const ListedPlugin listed{0, &plugin};
  EXPECT_THAT(add_contents({&listed, 1}, catalog), IsEmpty());
  EXPECT_NE(catalog.find_actor("drop"), nullptr);
  EXPECT_EQ(catalog.messages.size(), num_messages);  // it was there
}

TEST(PluginContents, NeedANameOfTheirOwn) {
  EXPECT_THAT(fault_of(Plugin()), HasSubstr("it names itself ''"));
  Plugin plugin = a_plugin();
  plugin.actors = {Drop<TrajectoryGroup>::contract("Drop It")};
  EXPECT_THAT(fault_of(plugin), HasSubstr("an actor 'Drop It'"));
  plugin.actors = {Drop<TrajectoryGroup>::contract("router")};
  EXPECT_THAT(fault_of(plugin), HasSubstr("an actor 'router', and there is one of that name"));
  plugin.actors = {Drop<TrajectoryGroup>::contract(), Drop<TrajectoryGroup>::contract()};
  EXPECT_THAT(fault_of(plugin), HasSubstr("an actor 'drop'"));
  plugin = a_plugin();
  plugin.rewards = reward_contracts();
  EXPECT_THAT(fault_of(plugin), HasSubstr("a reward 'exact'"));
  plugin = a_plugin();
  plugin.environments = environment_contracts();
  EXPECT_THAT(fault_of(plugin), HasSubstr("an environment 'reverse_text'"));
  plugin = a_plugin();
  plugin.route_policies = {route_policies().front()};
  EXPECT_THAT(fault_of(plugin), HasSubstr("a routing policy 'sticky_least_loaded'"));
}

TEST(PluginContents, NeedEveryPartOfAContract) {
  Plugin plugin = a_plugin();
  Contract contract = Drop<TrajectoryGroup>::contract();
  contract.make = nullptr;
  plugin.actors = {contract};
  EXPECT_THAT(fault_of(plugin), HasSubstr("an actor 'drop' cannot be made"));
  contract = Drop<TrajectoryGroup>::contract();
  contract.doc.clear();
  plugin.actors = {contract};
  EXPECT_THAT(fault_of(plugin), HasSubstr("has no doc text"));
  contract = Drop<TrajectoryGroup>::contract();
  contract.inputs.push_back(contract.inputs.front());
  plugin.actors = {contract};
  EXPECT_THAT(fault_of(plugin), HasSubstr("the input 'message' of actor 'drop' is there twice"));
}

TEST(PluginContents, MayNotGiveAMessageATakenName) {
  Plugin plugin = a_plugin();
  plugin.actors = {Drop<OtherTask>::contract()};
  EXPECT_THAT(fault_of(plugin), HasSubstr("a message 'Task' of its own"));
}

TEST(PluginContents, OfSeveralPluginsAreHeldAgainstEachOther) {
  Plugin one = a_plugin(), other = a_plugin();
  other.name = "other";
  one.actors = other.actors = {Drop<TrajectoryGroup>::contract()};
  Catalog catalog = built_in();
  const std::vector<ListedPlugin> listed{{0, &one}, {1, &other}};
  const auto faults = add_contents(listed, catalog);
  ASSERT_THAT(faults, SizeIs(1));
  EXPECT_EQ(faults.front().file, 1U);
}

}  // namespace
}  // namespace primerl
