/// ProcessCut: the consistent state of all actor groups of one process: no group has received a
/// message that its sender had not yet sent. CutCollector builds it from the groups' parts.
///
/// How a cut is made: a caller calls begin(n) and orders every group of the process to cut. A group
/// cuts between two steps. It ships its written batches, saves its state, and stamps every later
/// batch with n. A group that gets a batch with a newer stamp cuts first and then accepts the
/// batch. So three cases exist. A message was sent and received before the cut. It was sent and
/// received after the cut. Or it was sent before and received after: then its stamp is older than
/// the receiver's cut, and the cut contains it as a message in transit. The cut is complete when
/// every group has saved its state and has received as many messages as were shipped to it.
///
/// Groups do not wait for each other: a group in a long step saves its state after the step.
/// Messages between processes are in no cut: receivers record them, and senders keep unacknowledged
/// ones (docs/design/recovery.md).
///
/// Threads: any; one lock, held only to copy plain values.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "runtime/exec/group_state.h"
#include "runtime/exec/wiring.h"

namespace primerl {

struct ProcessCut {
  uint64_t number = 0;                   // rises within one incarnation of a process
  std::vector<GroupState> groups;        // all groups of the process, in the order of the plan
  std::vector<SavedMessage> in_transit;  // between groups of the process, in order per link

  template <class F>
  static void fields(F& f) {
    f("number", &ProcessCut::number)("groups", &ProcessCut::groups)("in_transit",
                                                                    &ProcessCut::in_transit);
  }
};

/// Receives a group's part of a cut. Called on the group's thread.
class CutSink {
 public:
  virtual ~CutSink() = default;
  virtual void add_part(uint64_t number, GroupState&& state) = 0;
  /// The message was sent before the cut and received after it.
  virtual void add_in_transit(uint64_t number, SavedMessage&& message) = 0;
};

class CutCollector final : public CutSink {
 public:
  /// `done` gets every complete cut, on the thread that completes it, without the lock.
  CutCollector(std::shared_ptr<const Plan> plan, std::shared_ptr<const Wiring> wiring,
               ProcessId process, std::function<void(ProcessCut&&)> done);

  /// Begins the next cut and returns its number; abandons an incomplete one.
  uint64_t begin();
  /// A cut has begun and is not complete.
  bool is_open() const;
  /// Abandons the incomplete cut.
  void abandon();

  // CutSink. Parts of an abandoned cut are ignored.
  void add_part(uint64_t number, GroupState&& state) override;
  void add_in_transit(uint64_t number, SavedMessage&& message) override;

 private:
  bool is_complete() const;
  std::optional<ProcessCut> take_complete();

  const std::shared_ptr<const Plan> plan_;
  const std::shared_ptr<const Wiring> wiring_;
  const ProcessId process_;
  const std::function<void(ProcessCut&&)> done_;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t number_ = 0;
  bool is_open_ = false;
  std::vector<std::optional<GroupState>> parts_;  // by GroupId
  std::vector<SavedMessage> in_transit_;
};

}  // namespace primerl
