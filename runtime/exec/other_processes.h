/// OtherProcesses: what an executor needs of the processes that share its run.
///
/// With it an executor sends batches to groups in other processes, and leaves decisions that need
/// all processes to the control plane: that every tenant has finished, that a drain is over, that
/// there is no progress.
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
  /// Takes a batch to the process of its target; in order per sending group. An Error ends the run.
  virtual Status send(ProcessId to, MessageBatch&& batch) = 0;
  /// Something that process `from` sent was left out: it may not send it.
  virtual void refused(ProcessId from, const Error& why) = 0;
  /// A node of this process finished the tenant; repeated when several nodes do.
  virtual void tenant_finished(TenantSlot tenant) = 0;
  /// A node of this process cannot go on for the tenant; repeated is harmless. The control plane
  /// has her set aside in all processes.
  virtual void tenant_failed(TenantSlot tenant, const std::string& why) = 0;
};

}  // namespace primerl
