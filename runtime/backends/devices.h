/// Whether the backends of a plan can compute where their places put them: asked of the machine
/// that has the device, before anything is made on it. Any thread. Rules over what is given, but
/// for check_devices_here(), which starts a program and hears it (program_output.h).
#pragma once

#include <functional>
#include <string>

#include "graph/plan.h"
#include "kernels/engine/device_room.h"

namespace primerl {

/// Why a resource of a kind ("engine", "learner") cannot compute on a device with libtorch, as the
/// end of a sentence after "which"; "": it can.
using WhyNotOn = std::function<std::string(const std::string& device, const std::string& kind)>;

/// The device of the process that owns the resource; "cpu" where none does.
const std::string& device_of(const Plan& plan, int32_t resource);

/// Whether all that publish to or take from the weight channel at `channel` of plan.resources
/// compute on devices with libtorch, so that weights may stay there.
bool is_among_devices(const Plan& plan, int32_t channel);

/// kInvalid names the first resource of `process` whose backend cannot use its device; kExhausted:
/// it is on the CPU of another machine than the run was started on, whose memory is not enough.
Status check_devices(const Plan& plan, ProcessId process, const WhyNotOn& why_not);

/// What one resource needs of its device, and which frozen weights are among it: those of a process
/// that name the same ones hold them once.
struct DeviceNeed {
  DeviceBytes bytes;
  std::string base = {};  // "bfloat16 of /models/qwen"; empty: none
};

/// What the resources of libtorch need of a device, and what it has free.
struct DeviceBudget {
  std::function<Result<DeviceNeed>(const Plan& plan, int32_t resource)> need;
  std::function<Result<DeviceRoom>(const std::string& device)> room;
};

/// Likewise of all processes of this machine that choose no devices by an environment variable;
/// then kExhausted names the first device on which those that share it do not fit together.
Status check_devices(const Plan& plan, const WhyNotOn& why_not, const DeviceBudget& memory);

/// The same, by the worker that the processes will run; it is asked only where a device other than
/// the CPU is wanted. kDeadline: it does not answer.
Status check_devices_here(const Plan& plan);

}  // namespace primerl
