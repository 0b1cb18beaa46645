/// Backends: makes the resource for each (kind, backend) of a plan. torch_backends.h has the
/// backends of libtorch.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/models/frozen_bases.h"
#include "kernels/weights/stream_channel.h"
#include "runtime/backends/devices.h"
#include "runtime/exec/executor.h"

namespace primerl {

/// Facts about the run for resources that connect to other processes.
struct BackendSetup {
  std::filesystem::path run_folder;      // empty outside a run: such resources are then refused
  std::string run_id;                    // of run.json
  bool is_served = false;                // of run.json: tenants come and go
  ProcessId process{ProcessId::none()};  // the run's process that makes them; none outside a run
  std::function<void(std::string_view)> log;  // receives lines for a person; may be null
  /// The same for lines of processes outside, such as Python workers.
  std::function<void(std::string_view)> log_outside;
  /// Joins a weight channel of backend "stream" to the other processes, as the stream with the
  /// number of its resource. Null: there are no other processes.
  std::function<void(uint32_t stream, std::vector<ProcessId> peers, std::shared_ptr<StreamChannel>)>
      join_streams{};
  std::function<void()> streams_have_news{};  // such a channel has something to send
  /// Frozen weights that engines and learners of this process share.
  std::shared_ptr<FrozenBases> bases = std::make_shared<FrozenBases>();
};

/// The setup of a worker of the run in `run_folder`; run.json has the run's id.
Result<BackendSetup> backend_setup(const std::filesystem::path& run_folder,
                                   std::function<void(std::string_view)> log);

/// Makes resources with the plan's compute threads, each on the calling thread. The factory and its
/// copies own what the resources share. If this build lacks a resource, the error names those that
/// it has.
ResourceFactory resource_factory(BackendSetup setup = {});

/// The group that owns a resource of the plan; none for shared resources.
GroupId owner_of(const Plan& plan, int32_t resource);
/// LearnerOptions::max_steps of every learner of the plan: its schedule ends with the longest
/// tenant.
int32_t schedule_steps(const Plan& plan);

/// The WhyNotOn and the DeviceBudget of this build, for check_devices(). Without libtorch the
/// memory is an error.
std::string why_no_torch_on(const std::string& device, const std::string& kind);
DeviceBudget torch_device_memory();
/// If computation on `device` is slow: which kernels it uses, and which kernels would be fast.
/// Otherwise "".
std::string slow_torch_way_on(const std::string& device);

/// "engine torch", "engine scripted", ...
std::vector<std::string> backend_names();

}  // namespace primerl
