/// What a process does whose device is lost (kDeviceLostCode): it cannot compute anything more,
/// so whoever made its engines and learners hears of it, and ends it. The step in which it shows is
/// in no record: the run then goes on as after any other death of a process.
///
/// Threads: those of the resources.
#pragma once

#include <functional>

#include "runtime/exec/executor.h"
#include "runtime/log/log.h"

namespace primerl {

/// `why`: what was computed, the device's error and what to do. Does not return where the process
/// ends; where it does, the resource's caller gets the error.
using OnDeviceLost = std::function<void(GroupId owner, const Error& why)>;

/// Writes the last words of this process and ends it as if it were killed: nothing may touch the
/// device again, and records end where they are. Plan and log live as long as the process.
OnDeviceLost end_of_process(const Plan& plan, Log& log);

/// The resources of `make`; `on_lost` hears of the first error of any engine or learner that says
/// that its device is lost.
ResourceFactory device_watching_factory(ResourceFactory make, OnDeviceLost on_lost);

}  // namespace primerl
