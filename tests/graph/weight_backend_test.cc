#include "graph/weight_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

/// One user of the channel on each of these machines, each in a process of its own.
Plan plan_on(const std::vector<std::string>& machines, const std::string& backend) {
  Plan plan;
  plan.resources.resize(2);
  plan.resources[1].name = "weights";
  plan.resources[1].kind = "weight_channel";
  plan.resources[1].backend = backend;
  for (const auto& machine : machines) {
    const auto number = static_cast<uint32_t>(plan.processes.size());
    PlanProcess process;
    process.name = fmt::format("p{}", number);
    process.machine = machine;
    plan.processes.push_back(std::move(process));
    PlanGroup group;
    group.process = ProcessId(number);
    plan.groups.push_back(std::move(group));
    PlanInstance instance;
    instance.group = GroupId(number);
    instance.resources = {1};
    plan.instances.push_back(std::move(instance));
  }
  return plan;
}

std::string chosen(const std::vector<std::string>& machines, const std::string& backend) {
  const auto name = weight_backend(plan_on(machines, backend), 1);
  return name.ok() ? *name : name.error().text();
}

TEST(WeightBackend, AutoIsTheFirstThatReachesAll) {
  EXPECT_EQ(chosen({""}, "auto"), "memory");
  EXPECT_EQ(chosen({"", ""}, "auto"), "shm");
  EXPECT_EQ(chosen({"far", "far"}, "auto"), "shm");
  EXPECT_EQ(chosen({"", "far"}, "auto"), "stream");
}

TEST(WeightBackend, OtherUsersAreNotCounted) {
  Plan plan = plan_on({"", "far"}, "auto");
  plan.instances[1].resources = {0};
  EXPECT_EQ(weight_backend(plan, 1).value(), "memory");
}

TEST(WeightBackend, AWrittenBackendIsUsedIfItConnectsAll) {
  EXPECT_EQ(chosen({""}, "files"), "files");
  EXPECT_EQ(chosen({""}, "shm"), "shm");
  EXPECT_EQ(chosen({"", "far"}, "files"), "files");
  EXPECT_EQ(chosen({""}, "stream"), "stream");
  EXPECT_EQ(chosen({"", "far"}, "stream"), "stream");
  EXPECT_THAT(
      chosen({"", ""}, "memory"),
      testing::HasSubstr("'weights' with backend memory cannot connect the processes p0 and p1"));
  EXPECT_THAT(chosen({"", "far"}, "shm"), testing::HasSubstr("with backend shm cannot connect"));
}

TEST(WeightBackend, LinksConnectUsersOfAStreamChannel) {
  Plan plan = plan_on({"", "far", ""}, "auto");
  plan.instances[2].resources = {0};
  EXPECT_TRUE(are_joined_by_weights(plan, ProcessId(0), ProcessId(1)));
  EXPECT_FALSE(are_joined_by_weights(plan, ProcessId(0), ProcessId(2)));
  // If a process has a learner, only that process sends.
  plan.resources.push_back({});
  plan.resources[2].kind = "learner";
  plan.instances[2].resources = {1};
  for (uint32_t i = 0; i < 3; ++i) plan.processes[i].groups = {GroupId(i)};
  plan.groups[0].resources = {2};
  EXPECT_TRUE(are_joined_by_weights(plan, ProcessId(0), ProcessId(1)));
  EXPECT_TRUE(are_joined_by_weights(plan, ProcessId(2), ProcessId(0)));
  EXPECT_FALSE(are_joined_by_weights(plan, ProcessId(1), ProcessId(2)));
  plan.resources[1].backend = "files";
  EXPECT_FALSE(are_joined_by_weights(plan, ProcessId(0), ProcessId(1)));
}

}  // namespace
}  // namespace primerl
