/// OtherProcesses: the executor's view of the other processes of its run.
///
/// With it an executor sends batches to groups in other processes. It also leaves three decisions
/// that need all processes to the control plane: that every tenant has finished, that a drain is
/// over, and that no process makes progress.
///
/// Threads: called from any group's thread; must not block.
#pragma once

#include <string>

#include "graph/base/result.h"
#include "runtime/wire/message_batch.h"

namespace primerl {

class OtherProcesses {
 public:
  virtual ~OtherProcesses() = default;
  /// Sends a batch to its target's process, in order per sending group. An Error ends the run.
  virtual Status send(ProcessId to, MessageBatch&& batch) = 0;
  /// Something that process `from` sent was skipped, because `from` may not send it.
  virtual void refused(ProcessId from, const Error& why) = 0;
  /// A node of this process finished the tenant; called again when several nodes do. `tenancy`: the
  /// use of the slot, or kTenancyUnknown.
  virtual void tenant_finished(TenantSlot tenant, uint32_t tenancy) = 0;
  /// A node of this process cannot continue for the tenant; repeated is harmless. The control plane
  /// sets the tenant aside in all processes.
  virtual void tenant_failed(TenantSlot tenant, uint32_t tenancy, const std::string& why) = 0;
};

}  // namespace primerl
