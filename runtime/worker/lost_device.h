/// The end of a process that loses its device (Code::kDeviceLost). It can compute nothing more, so
/// its owner is notified and ends it. The step that noticed the loss is in no record. The run then
/// continues as after any other death of a process.
///
/// Threads: the threads of the resources.
#pragma once

#include <functional>

#include "runtime/exec/executor.h"
#include "runtime/log/log.h"

namespace primerl {

/// `why`: what was computed, the device's error, and what to do. Does not return if it ends the
/// process; if it returns, the resource's caller gets the error.
using OnDeviceLost = std::function<void(GroupId owner, const Error& why)>;

/// Writes the last log line of this process and ends it like SIGKILL does: no code may touch the
/// device again, and records end where they are. `plan` and `log` must stay valid as long as the
/// process.
OnDeviceLost end_of_process(const Plan& plan, Log& log);

/// The resources of `make`. Calls `on_lost` at the first error of any engine or learner which says
/// that its device is lost.
ResourceFactory device_watching_factory(ResourceFactory make, OnDeviceLost on_lost);

}  // namespace primerl
