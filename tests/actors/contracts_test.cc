#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "actors/catalog.h"

namespace primerl {
namespace {

const Contract* find(const std::vector<Contract>& catalog, const std::string& actor) {
  for (const auto& contract : catalog)
    if (contract.name == actor) return &contract;
  return nullptr;
}

TEST(Contracts, HaveThePortsThatGraphFilesName) {
  const auto catalog = actor_catalog();
  // The edges of the demo, as docs and examples have them.
  const std::vector<std::array<std::string, 4>> edges = {
      {"env", "task", "rollout", "task"},
      {"rollout", "generate", "router", "generate"},
      {"router", "prefill", "prefill", "request"},
      {"prefill", "done", "decode", "request"},
      {"rollout", "group", "trainer", "group"},
      {"trainer", "weights", "broadcaster", "weights"},
      {"decode", "completion", "rollout", "completion"},
      {"router", "refused", "rollout", "completion"},
      {"prefill", "refused", "rollout", "completion"},
      {"trainer", "ended", "rollout", "ended"},
      {"rollout", "cancel", "router", "cancel"},
      {"router", "abort", "prefill", "abort"},
      {"router", "abort", "decode", "abort"},
      {"rollout", "action", "env", "action"},
      {"env", "observation", "rollout", "observation"},
      {"prefill", "load", "router", "load"},
      {"decode", "load", "router", "load"},
      {"broadcaster", "update", "prefill", "update"},
      {"broadcaster", "update", "decode", "update"},
      {"prefill", "applied", "broadcaster", "applied"},
      {"decode", "applied", "broadcaster", "applied"},
      {"broadcaster", "live", "rollout", "policy"},
  };
  for (size_t i = 0; i < edges.size(); ++i) {
    const auto& [from, output, to, input] = edges[i];
    const Contract* sender = find(catalog, from);
    const Contract* receiver = find(catalog, to);
    ASSERT_TRUE(sender != nullptr && receiver != nullptr) << from << " " << to;
    const OutputPort* out = sender->find_output(output);
    const InputPort* in = receiver->find_input(input);
    ASSERT_NE(out, nullptr) << from << "." << output;
    ASSERT_NE(in, nullptr) << to << "." << input;
    EXPECT_EQ(out->type, in->type) << from << "." << output << " -> " << to << "." << input;
    const bool is_feedback = i >= 6;
    EXPECT_TRUE(!is_feedback || in->latest_wins || in->at_most || out->at_most)
        << from << "." << output << " -> " << to << "." << input << " has no number";
  }
}

TEST(Contracts, HaveADocForEverything) {
  std::set<std::string> names;
  for (const auto& contract : actor_catalog()) {
    EXPECT_TRUE(names.insert(contract.name).second) << contract.name;
    EXPECT_FALSE(contract.doc.empty()) << contract.name;
    std::set<std::string> ports;
    for (const auto& port : contract.inputs) {
      EXPECT_FALSE(port.doc.empty()) << contract.name << "." << port.name;
      EXPECT_TRUE(ports.insert(port.name).second) << contract.name << "." << port.name;
    }
    for (const auto& port : contract.outputs) {
      EXPECT_FALSE(port.doc.empty()) << contract.name << "." << port.name;
      EXPECT_TRUE(ports.insert(port.name).second) << contract.name << "." << port.name;
    }
    for (const auto& option : contract.options.fields)
      EXPECT_FALSE(option.doc.empty()) << contract.name << "." << option.name;
  }
}

TEST(Contracts, WorkOnlyWhereWorkMaySend) {
  for (const auto& contract : actor_catalog()) {
    if (contract.works) continue;
    for (const auto& port : contract.outputs)
      EXPECT_EQ(port.work_burst.value(nullptr, {}), 0) << contract.name << "." << port.name;
  }
}

}  // namespace
}  // namespace primerl
