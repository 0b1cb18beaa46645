#include "runtime/plugins/plugin_contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "actors/catalog.h"
#include "actors/env/environments/catalog.h"
#include "actors/env/rewards/catalog.h"
#include "actors/messages/catalog.h"
#include "actors/messages/rollout.h"
#include "kernels/train/loss.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

struct NoOptions {};

/// A message with a name that exists already.
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
        .in("message", &Drop::on_message, "anything")
        .stateless();
  }

 private:
  Status on_message(const M&) { return ok(); }
};

struct Flag {
  bool is_on = false;
};

class Pass final : public Actor {
 public:
  explicit Pass(const NoOptions&) {}
  Status on_group(const TrajectoryGroup& group) {
    out_.send(group);
    return ok();
  }
  Status on_late() { return ok(); }
  Out<TrajectoryGroup> out_;
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
  EXPECT_EQ(catalog.messages.size(), num_messages);  // it existed before
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

TokenLoss no_loss(const Objective&, const TokenFacts&) { return {}; }

TEST(PluginContents, ObjectivesAreNamedAndWhole) {
  const auto fault = [](const std::function<void(ObjectiveSpec&)>& change) {
    Plugin plugin = a_plugin();
    ObjectiveSpec spec;
    spec.name = "custom";
    spec.rule = ObjectiveRule::kOwn;
    spec.doc = "a loss";
    spec.own_loss = no_loss;
    change(spec);
    plugin.objectives = {spec};
    return fault_of(plugin);
  };
  EXPECT_EQ(fault([](auto&) {}), "fits");
  EXPECT_THAT(fault([](auto& o) { o.name = "grpo"; }), HasSubstr("an objective 'grpo'"));
  EXPECT_THAT(fault([](auto& o) { o.name = "Custom"; }), HasSubstr("an objective 'Custom'"));
  EXPECT_THAT(fault([](auto& o) { o.doc = ""; }), HasSubstr("has no doc text"));
  EXPECT_THAT(fault([](auto& o) { o.own_loss = nullptr; }), HasSubstr("has no loss"));
  EXPECT_THAT(fault([](auto& o) { o.rule = ObjectiveRule::kDppo; }), HasSubstr("has no loss"));
  EXPECT_THAT(fault([](auto& o) { o.advantage = "median"; }), HasSubstr("advantage 'median'"));
  EXPECT_THAT(fault([](auto& o) {
                o.numbers = {{&LossOptions::clip_low, "clip_high", 1}};
              }),
              HasSubstr("a number 'clip_high'"));
  EXPECT_THAT(fault([](auto& o) {
                o.numbers = {{&LossOptions::clip_low, "clip_low", -2}};
              }),
              HasSubstr("a number 'clip_low' of -2"));
}

/// The fault of a plugin with one actor, whose contract `change` breaks.
std::string fault_of_actor(const std::function<void(Contract&)>& change) {
  Contract contract = ContractOf<Pass, NoOptions>("pass", "passes on")
                          .in("in", &Pass::on_group, "a group")
                          .out("out", &Pass::out_, "the same")
                          .timer("late", &Pass::on_late, "time is up")
                          .stateless();
  change(contract);
  Plugin plugin = a_plugin();
  plugin.actors = {contract};
  return fault_of(plugin);
}

TEST(PluginContents, NeedEveryPartOfAContract) {
  EXPECT_EQ(fault_of_actor([](Contract&) {}), "fits");
  const std::vector<std::pair<std::string, std::function<void(Contract&)>>> cases = {
      {"an actor 'pass' cannot be made", [](Contract& c) { c.make = nullptr; }},
      {"actor 'pass' does not say what its state is",
       [](Contract& c) { c.state = StateOfActor(); }},
      {"has no doc text", [](Contract& c) { c.doc.clear(); }},
      {"input 'in' of actor 'pass' is there twice",
       [](Contract& c) { c.inputs.push_back(c.inputs.front()); }},
      {"input 'In' of actor 'pass' has no lower_snake",
       [](Contract& c) { c.inputs[0].name = "In"; }},
      {"input 'in' of actor 'pass' has no message",
       [](Contract& c) { c.inputs[0].type = nullptr; }},
      {"input 'in' of actor 'pass' has no handler",
       [](Contract& c) { c.inputs[0].handle = nullptr; }},
      {"input 'in' of actor 'pass' has no number",
       [](Contract& c) { c.inputs[0].at_most = Amount(); }},
      {"output 'out' of actor 'pass' has no message",
       [](Contract& c) { c.outputs[0].type = nullptr; }},
      {"output 'out' of actor 'pass' belongs to no member",
       [](Contract& c) { c.outputs[0].bind = nullptr; }},
      {"a number that cannot be computed", [](Contract& c) { c.outputs[0].burst = Amount(); }},
      {"a number that cannot be computed", [](Contract& c) { c.outputs[0].bytes_max = Amount(); }},
      {"keyed without a key", [](Contract& c) { c.outputs[0].routing = Routing::kKeyed; }},
      {"timer 'late' of actor 'pass' has no handler",
       [](Contract& c) { c.timers[0].handle = nullptr; }},
      {"timer 'late' of actor 'pass' is there twice",
       [](Contract& c) { c.timers.push_back(c.timers.front()); }},
      {"use 'base' of actor 'pass' is of no known kind ('database')",
       [](Contract& c) {
         c.resources.push_back({"base", "database", nullptr});
       }},
      {"the demand on 'group_size' of actor 'pass' has no check",
       [](Contract& c) {
         c.demands.push_back({"group_size", nullptr, ""});
       }},
      {"option 'per_tenant' of 'pass' is there twice, or is taken",
       [](Contract& c) {
         c.options = OptionsOf<Flag>().field("per_tenant", &Flag::is_on, any(), "taken").take();
       }},
      {"option 'is_on' of 'pass' can be neither read nor written",
       [](Contract& c) {
         c.options = OptionsOf<Flag>().field("is_on", &Flag::is_on, any(), "a flag").take();
         c.options.fields[0].print = nullptr;
       }},
      {"the options of 'pass' cannot be made",
       [](Contract& c) {
         c.options = OptionsOf<Flag>().field("is_on", &Flag::is_on, any(), "a flag").take();
         c.options.make = nullptr;
       }},
  };
  for (const auto& [expected, change] : cases)
    EXPECT_THAT(fault_of_actor(change), HasSubstr(expected));
}

TEST(PluginContents, MayNotGiveAMessageATakenName) {
  Plugin plugin = a_plugin();
  plugin.actors = {Drop<OtherTask>::contract()};
  EXPECT_THAT(fault_of(plugin), HasSubstr("a message 'Task' of its own"));
}

TEST(PluginContents, OfSeveralPluginsAreCheckedAgainstEachOther) {
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
