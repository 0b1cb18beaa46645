/// ArrivalCheck: checks messages from another process against the plan before any group receives
/// them.
///
///   transport -> [ arrival check ] -> group -> inbox
///
/// A process may send only for its own groups. The link must be in the plan, begin in that process
/// and end here. The message must have the link's type and a tenant that the link serves. Invalid
/// messages are removed from their batch; the rest is delivered. The group itself checks numbers
/// that depend on its state (sequences, grants). Immutable after construction, so any thread may
/// use it.
#pragma once

#include <memory>
#include <vector>

#include "runtime/exec/wiring.h"

namespace primerl {

class ArrivalCheck {
 public:
  /// `here` is the receiving process.
  ArrivalCheck(std::shared_ptr<const Plan> plan, std::shared_ptr<const Wiring> wiring,
               ProcessId here);

  /// Removes messages from the batch that `from` may not send. Returns the first error, or ok.
  Status filter(ProcessId from, MessageBatch& batch) const;

 private:
  /// Properties of a link's messages that Wiring does not have.
  struct Expected {
    const MessageType* type = nullptr;
    TenantSlot sender_tenant;  // tenant of the sender instance; none when shared
  };
  Status check_ends(ProcessId from, const MessageBatch& batch) const;
  Status check(const MessageBatch& batch, const BatchedMessage& message) const;

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Wiring> wiring_;
  const ProcessId here_;
  std::vector<Expected> expected_;  // by LinkId
};

}  // namespace primerl
