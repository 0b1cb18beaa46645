/// Checks whether the backends of a plan can compute on the devices of their places. The machine
/// that has the device is asked, before anything is made on it. Any thread. The functions only
/// evaluate their arguments, except check_devices_here(), which starts a program and reads its
/// output (program_output.h).
#pragma once

#include <functional>
#include <string>

#include "graph/plan.h"
#include "kernels/engine/device_room.h"

namespace primerl {

/// Why a resource of a kind ("engine", "learner") cannot compute on a device with libtorch, as the
/// end of a sentence after "which". "": it can.
using WhyNotOn = std::function<std::string(const std::string& device, const std::string& kind)>;

/// The device of the process that owns the resource; "cpu" without an owner.
const std::string& device_of(const Plan& plan, int32_t resource);

/// Whether all resources that publish to or fetch from the weight channel at `channel` of
/// plan.resources compute on devices with libtorch. Then weights may stay there.
bool is_among_devices(const Plan& plan, int32_t channel);

/// kInvalid names the first resource of `process` whose backend cannot use its device. kExhausted:
/// the process runs on the CPU of another machine than the one where the run was started, and that
/// machine has too little memory.
Status check_devices(const Plan& plan, ProcessId process, const WhyNotOn& why_not);

/// The memory of its device that one resource needs. `base` names its frozen weights: resources of
/// a process with equal names share one copy of them.
struct DeviceNeed {
  DeviceBytes bytes;
  std::string base = {};  // "bfloat16 of /models/qwen"; empty: none
};

/// Functions that return the memory that a libtorch resource needs, and the free memory of a
/// device.
struct DeviceBudget {
  std::function<Result<DeviceNeed>(const Plan& plan, int32_t resource)> need;
  std::function<Result<DeviceMemoryInfo>(const std::string& device)> room;
};

/// Checks the devices of all processes of this machine that do not select devices by an environment
/// variable. It also checks memory: kExhausted names the first device whose processes do not fit
/// together.
Status check_devices(const Plan& plan, const WhyNotOn& why_not, const DeviceBudget& memory);

/// The result of check_devices(), computed by the worker program that the processes will run. The
/// program is started only if the plan uses a device other than the CPU. kDeadline: it does not
/// answer.
Status check_devices_here(const Plan& plan);

}  // namespace primerl
