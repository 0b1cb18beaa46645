/// ArrivalCheck: what another process sent, held against the plan before any group sees it.
///
///   transport -> [ arrival check ] -> group -> inbox
///
/// A process may speak for its own groups, on links of the plan that begin there and end here, with
/// messages of the link's type, for tenants that the link serves. What does not fit is taken out of
/// its batch; all else goes on. Numbers that need a group's state (sequences, grants) are the
/// group's to check. Immutable after construction: any thread.
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

  /// Leaves in the batch what `from` may send. The first thing that it may not, or ok.
  Status sift(ProcessId from, MessageBatch& batch) const;

 private:
  /// What a link carries, beyond its Wiring.
  struct Cargo {
    const MessageType* type = nullptr;
    TenantSlot sender_tenant;  // of the sender instance; none when shared
  };
  Status check_ends(ProcessId from, const MessageBatch& batch) const;
  Status check(const MessageBatch& batch, const BatchedMessage& message) const;

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Wiring> wiring_;
  const ProcessId here_;
  std::vector<Cargo> cargo_;  // by LinkId
};

}  // namespace primerl
