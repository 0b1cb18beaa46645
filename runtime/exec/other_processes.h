/// OtherProcesses: what an executor needs of the processes that share its run.
///
/// With it an executor sends batches to groups elsewhere, and leaves to whoever sees all processes
/// what one cannot know alone: that every tenant has finished, that a drain is over, that nobody
/// gets on.
///
/// Threads: called from any group's thread; must not block.
#pragma once

#include "graph/base/result.h"
#include "runtime/wire/message_batch.h"

namespace primerl {

class OtherProcesses {
 public:
  virtual ~OtherProcesses() = default;
  /// Takes a batch to the process of its target; in order per sending group. An Error ends the run.
  virtual Status carry(ProcessId to, MessageBatch&& batch) = 0;
  /// Something that the process sent was left out: it may not say it.
  virtual void refused(ProcessId from, const Error& why) = 0;
  /// A node of this process says so; repeated for a tenant when several do.
  virtual void tenant_finished(TenantSlot tenant) = 0;
};

}  // namespace primerl
