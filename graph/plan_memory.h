/// The memory that the processes of a plan need at their peak, on the CPU: what `show --plan`
/// prints, and what is held against the memory of a machine. Plain functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graph/base/machine_memory.h"
#include "graph/base/memory_part.h"
#include "graph/plan.h"

namespace primerl {

/// The parts that the resources of a process keep; none for a process on a CUDA device, whose
/// memory is counted by the device.
ProcessMemory memory_of(const Plan& plan, const PlanProcess& process);

/// Bytes of all processes of a machine ("" is the one where the run is started), with or without
/// what is optional.
double memory_on(const Plan& plan, std::string_view machine, bool with_optional);

/// Whether the optional parts of a process fit into its 'memory_max' and, together with those of
/// all others of its machine, into `limit`.
bool has_memory_for_optional(const Plan& plan, const PlanProcess& process,
                             const MemoryLimit& limit);

/// Why the processes of a machine cannot have the memory that they need.
struct MemoryShortage {
  Error fault;           // kExhausted; its notes are the largest parts and what to do
  std::string resource;  // that keeps the largest part
};
/// None: `limit` is enough for the processes of `machine`, without what is optional.
std::optional<MemoryShortage> memory_shortage(const Plan& plan, std::string_view machine,
                                              const MemoryLimit& limit);
Status check_memory_on(const Plan& plan, std::string_view machine, const MemoryLimit& limit);

}  // namespace primerl
