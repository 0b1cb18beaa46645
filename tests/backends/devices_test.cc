#include "runtime/backends/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primerl {
namespace {

using testing::HasSubstr;

/// A driver without a resource, inference#0 and #1 with one engine each, training with a learner.
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

/// A channel that all processes except the driver use.
int32_t add_channel(Plan& plan) {
  plan.resources.push_back({});
  plan.resources.back().kind = "weight_channel";
  for (uint32_t i = 1; i < 4; ++i) {
    PlanInstance instance;
    instance.group = GroupId(i);
    instance.resources = {static_cast<int32_t>(i - 1), 3};
    plan.instances.push_back(std::move(instance));
  }
  return 3;
}

TEST(Devices, WeightsStayOnThemWhereAllWhoUseTheChannelComputeOnOne) {
  const auto stay = [](const std::string& backend, const std::vector<std::string>& devices) {
    Plan plan = plan_of(backend, devices);
    const int32_t channel = add_channel(plan);
    return is_among_devices(plan, channel);
  };
  EXPECT_TRUE(stay("torch", {"cpu", "cuda:0", "cuda:1", "cuda:0"}));
  EXPECT_FALSE(stay("torch", {"cuda:0", "cuda:0", "cpu", "cuda:0"}));
  EXPECT_FALSE(stay("torch", {"cpu", "cuda:0", "cuda:1", "cpu"}));
  EXPECT_FALSE(stay("scripted", {"cpu", "cuda:0", "cuda:1", "cuda:0"}));
}

/// Engines can use only the first GPU, learners none.
std::string first_gpu_alone(const std::string& device, const std::string& kind) {
  const bool is_usable = device == "cpu" || (device == "cuda:0" && kind == "engine");
  return is_usable ? "" : "is not available: built so";
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
                        "is not available: built so"));
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

/// Every engine needs 3 GB and every learner 11 GB, of which 1 GB are the frozen weights named
/// `base`. Each device has `free_bytes` free.
DeviceBudget memory_of(double free_bytes, const std::string& base = "") {
  DeviceBudget memory;
  memory.need = [base](const Plan& plan, int32_t resource) -> Result<DeviceNeed> {
    const bool is_engine = plan.resources[static_cast<size_t>(resource)].kind == "engine";
    return DeviceNeed{{is_engine ? 3e9 : 11e9, base.empty() ? 0.0 : 1e9}, base};
  };
  memory.room = [free_bytes](const std::string&) -> Result<DeviceMemoryInfo> {
    return DeviceMemoryInfo{free_bytes, 80e9};
  };
  return memory;
}

std::string room_fault_of(const Plan& plan, double free_bytes, const std::string& base = "") {
  const WhyNotOn all_there = [](const std::string&, const std::string&) { return ""; };
  const Status checked = check_devices(plan, all_there, memory_of(free_bytes, base));
  return checked.ok() ? "" : checked.error().text();
}

TEST(Devices, ResourcesThatShareOneMustFitTogether) {
  const Plan plan = plan_of("torch", {"cpu", "cuda:0", "cuda:1", "cuda:0"});
  EXPECT_EQ(room_fault_of(plan, 14e9), "");
  EXPECT_EQ(room_fault_of(plan, 13.9e9),
            "the graph needs 14.0 GB of 'cuda:0', which has 13.9 of 80.0 GB free: engine of "
            "'inference#0' 3.0, learner of 'training' 11.0\n"
            "   lower 'kv_blocks' or 'max_batched_tokens' of an engine, 'micro_batch_tokens' of a "
            "learner, or place one of them on another device\n"
            "   'nvidia-smi' shows who holds the rest");
  EXPECT_THAT(room_fault_of(plan, 2e9), HasSubstr("which has 2.0 of 80.0 GB free"));
}

TEST(Devices, HoldTheFrozenWeightsOfAProcessOnce) {
  // Two processes: each has its own copy.
  const Plan apart = plan_of("torch", {"cpu", "cuda:0", "cpu", "cuda:0"});
  EXPECT_EQ(room_fault_of(apart, 14e9, "bfloat16 of model"), "");
  EXPECT_THAT(room_fault_of(apart, 13.9e9, "bfloat16 of model"), HasSubstr("needs 14.0 GB"));
  Plan together = apart;
  together.processes[1].groups.push_back(GroupId(3));
  together.processes[3].groups.clear();
  together.groups[3].process = ProcessId(1);
  EXPECT_EQ(room_fault_of(together, 13e9, "bfloat16 of model"), "");
  EXPECT_THAT(room_fault_of(together, 12.9e9, "bfloat16 of model"),
              HasSubstr("needs 13.0 GB of 'cuda:0', which has 12.9 of 80.0 GB free: engine of "
                        "'inference#0' 3.0, learner of 'inference#0' (base weights held once) "
                        "10.0"));
}

TEST(Devices, OfAnotherMachineOfAnotherViewOrOfScriptedResourcesNeedNoRoomHere) {
  Plan plan = plan_of("torch", {"cpu", "cuda:0", "cuda:1", "cuda:0"});
  for (auto& process : plan.processes) process.machine = "far";
  EXPECT_EQ(room_fault_of(plan, 0), "");
  for (auto& process : plan.processes) {
    process.machine.clear();
    process.variables = {"A=b", "CUDA_VISIBLE_DEVICES=" + process.name};
  }
  EXPECT_EQ(room_fault_of(plan, 0), "") << "what they call cuda:0 is not one device";
  EXPECT_EQ(room_fault_of(plan_of("scripted", {"cpu", "cuda:0", "cuda:1", "cuda:0"}), 0), "");
  EXPECT_EQ(room_fault_of(plan_of("torch", {"cpu", "cpu", "cpu", "cpu"}), 0), "");
}

TEST(Devices, OneThatIsNotThereIsNamedBeforeItsRoom) {
  const Plan plan = plan_of("torch", {"cpu", "cuda:0", "cuda:1", "cuda:0"});
  const Status checked = check_devices(plan, &first_gpu_alone, memory_of(0));
  ASSERT_FALSE(checked.ok());
  EXPECT_THAT(checked.error().text(),
              HasSubstr("resource 'engine' of process 'inference#1' is placed on 'cuda:1', which"));
}

TEST(Devices, NoWorkerIsAskedForTheCpuNorForAnotherMachine) {
  Plan plan = plan_of("torch", {"cpu", "cuda:0", "cpu", "cpu"});
  plan.processes[1].machine = "far";
  // If a worker were asked, this would be an error.
  ::setenv("PRIMERL_WORKER", "/does/not/exist", 1);
  EXPECT_TRUE(check_devices_here(plan).ok());
  plan.processes[1].machine = "";
  EXPECT_FALSE(check_devices_here(plan).ok());
  ::unsetenv("PRIMERL_WORKER");
}

}  // namespace
}  // namespace primerl
