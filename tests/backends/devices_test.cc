#include "runtime/backends/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using testing::HasSubstr;

/// driver without a resource, inference#0 and #1 with an engine each, training with a learner.
Plan plan_of(const std::string& backend, const std::vector<std::string>& devices) {
  Plan plan;
  const std::vector<std::string> names = {"driver", "inference#0", "inference#1", "training"};
  for (uint32_t i = 0; i < names.size(); ++i) {
    PlanProcess process;
    process.name = names[i];
    process.device = devices[i];
    process.groups = {GroupId(i)};
    plan.processes.push_back(std::move(process));
    PlanGroup group;
    group.process = ProcessId(i);
    if (i > 0) group.resources = {static_cast<int32_t>(i - 1)};
    plan.groups.push_back(std::move(group));
  }
  for (const char* name : {"engine", "engine", "learner"}) {
    PlanResource resource;
    resource.name = name;
    resource.kind = name;
    resource.backend = backend;
    plan.resources.push_back(std::move(resource));
  }
  return plan;
}

/// Engines on the first card, learners on none.
std::string first_gpu_alone(const std::string& device, const std::string& kind) {
  const bool is_usable = device == "cpu" || (device == "cuda:0" && kind == "engine");
  return is_usable ? "" : "this build of libtorch has not: built so";
}

std::string fault_of(const Plan& plan, uint32_t process) {
  const Status checked = check_devices(plan, ProcessId(process), &first_gpu_alone);
  return checked.ok() ? "" : checked.error().text();
}

TEST(Devices, AreThoseOfTheProcessThatOwnsTheResource) {
  const Plan plan = plan_of("torch", {"cpu", "cuda:0", "cuda:1", "cuda:2"});
  EXPECT_EQ(device_of(plan, 0), "cuda:0");
  EXPECT_EQ(device_of(plan, 1), "cuda:1");
  EXPECT_EQ(device_of(plan, 2), "cuda:2");
  EXPECT_EQ(device_of(plan, 3), "cpu");
}

TEST(Devices, OneThatTheBackendCannotUseIsNamedWithResourceAndProcess) {
  const Plan plan = plan_of("torch", {"cuda:7", "cuda:0", "cuda:1", "cpu"});
  EXPECT_EQ(fault_of(plan, 0), "");  // nothing computes there
  EXPECT_EQ(fault_of(plan, 1), "");
  EXPECT_THAT(fault_of(plan, 2),
              HasSubstr("resource 'engine' of process 'inference#1' is placed on 'cuda:1', which "
                        "this build of libtorch has not: built so"));
  EXPECT_EQ(fault_of(plan, 3), "");
}

TEST(Devices, AreAskedForTheKindThatIsThere) {
  const Plan plan = plan_of("torch", {"cpu", "cuda:0", "cpu", "cuda:0"});
  EXPECT_EQ(fault_of(plan, 1), "");
  EXPECT_THAT(fault_of(plan, 3),
              HasSubstr("resource 'learner' of process 'training' is placed on"));
}

TEST(Devices, AreNothingToScriptedResources) {
  const Plan plan = plan_of("scripted", {"cpu", "cuda:1", "cuda:1", "cuda:1"});
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(fault_of(plan, i), "");
}

TEST(Devices, NobodyIsAskedForTheCpuNorForAnotherMachine) {
  Plan plan = plan_of("torch", {"cpu", "cuda:0", "cpu", "cpu"});
  plan.processes[1].machine = "far";
  // Without a worker to ask this would be an error.
  ::setenv("PRIMERL_WORKER", "/does/not/exist", 1);
  EXPECT_TRUE(check_devices_here(plan).ok());
  plan.processes[1].machine = "";
  EXPECT_FALSE(check_devices_here(plan).ok());
  ::unsetenv("PRIMERL_WORKER");
}

}  // namespace
}  // namespace primerl
