/// The memory that the processes of a plan need at their peak, on the CPU. `show --plan` prints it,
/// and it is compared with the memory of a machine. Plain functions, any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "graph/base/machine_memory.h"
#include "graph/base/memory_part.h"
#include "graph/plan.h"

namespace primerl {

/// The parts that the resources of a process keep. Empty for a process on a CUDA device: its memory
/// is counted on the device.
ProcessMemory memory_of(const Plan& plan, const PlanProcess& process);

/// Bytes of all processes of a machine ("" is the one where the run is started), with or without
/// optional parts.
double memory_on(const Plan& plan, std::string_view machine, bool with_optional);

/// Whether the optional parts of a process fit into its 'memory_max' and, together with those of
/// all other processes of its machine, into `limit`.
bool has_memory_for_optional(const Plan& plan, const PlanProcess& process,
                             const MemoryLimit& limit);

/// Why the memory of a machine is too small for its processes.
struct MemoryShortage {
  Error fault;           // kExhausted; its notes are the largest parts and what to do
  std::string resource;  // the resource that keeps the largest part
};
/// None if `limit` is enough for the processes of `machine`, without optional parts.
std::optional<MemoryShortage> memory_shortage(const Plan& plan, std::string_view machine,
                                              const MemoryLimit& limit);
Status check_memory_on(const Plan& plan, std::string_view machine, const MemoryLimit& limit);

}  // namespace primerl
