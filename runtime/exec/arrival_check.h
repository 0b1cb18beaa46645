/// ArrivalCheck: checks what another process sent against the plan before any group sees it.
///
///   transport -> [ arrival check ] -> group -> inbox
///
/// A process may send only for its own groups, on links of the plan that begin there and end here,
/// with messages of the link's type, for tenants that the link serves. What does not fit is removed
/// from its batch; the rest is delivered. Numbers that need a group's state (sequences, grants) are
/// checked by the group. Immutable after construction: any thread.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/wiring.h"

namespace primerl {

class ArrivalCheck {
 public:
  /// `here` is the process that receives.
  ArrivalCheck(std::shared_ptr<const Plan> plan, std::shared_ptr<const Wiring> wiring,
               ProcessId here);

  /// Removes from the batch what `from` may not send. Returns the first error, or ok.
  Status filter(ProcessId from, MessageBatch& batch) const;

 private:
  /// What a link carries, beyond its Wiring.
  struct Expected {
    const MessageType* type = nullptr;
    TenantSlot sender_tenant;  // of the sender instance; none when shared
  };
  Status check_ends(ProcessId from, const MessageBatch& batch) const;
  Status check(const MessageBatch& batch, const BatchedMessage& message) const;

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Wiring> wiring_;
  const ProcessId here_;
  std::vector<Expected> expected_;  // by LinkId
};

}  // namespace primerl
