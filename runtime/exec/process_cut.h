/// ProcessCut: the state of all actor groups of one process at moments that fit together: no group
/// has received what its sender had not yet sent. CutCollector puts one together from the parts.
///
/// How a cut is made. Somebody calls begin(n) and orders every group of the process to cut. A group
/// cuts between two steps: it ships what is written, saves its state, and stamps every later batch
/// with n. A group that gets a batch of a newer number first cuts before it takes that batch in. So
/// a message is either in the sender's past and the receiver's past, or in both futures, or in the
/// sender's past alone: then it comes to the receiver with an older stamp, after that one's cut,
/// and belongs to the cut as a message in transit. The cut is complete when every group has saved
/// its state and has received as many messages as the others had shipped to it.
///
/// Groups do not wait for each other: one that is in a long step saves its state after it. Messages
/// between processes are in no cut: receivers record them, senders keep those that are not
/// acknowledged (docs/design/recovery.md).
///
/// Threads: any; one lock, held for copies of plain values only.
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
  uint64_t number = 0;                   // rises within one start of a process
  std::vector<GroupState> groups;        // of the process, in the order of the plan
  std::vector<SavedMessage> in_transit;  // between groups of the process, in order per link

  template <class F>
  static void fields(F& f) {
    f("number", &ProcessCut::number)("groups", &ProcessCut::groups)("in_transit",
                                                                    &ProcessCut::in_transit);
  }
};

/// What a group tells of the cut that it takes part in. Called on its thread.
class CutSink {
 public:
  virtual ~CutSink() = default;
  virtual void add_part(uint64_t number, GroupState&& state) = 0;
  /// It came after the cut and was sent before it.
  virtual void add_in_transit(uint64_t number, SavedMessage&& message) = 0;
};

class CutCollector final : public CutSink {
 public:
  /// `done` gets every cut that is complete, on the thread that completes it, without the lock.
  CutCollector(std::shared_ptr<const Plan> plan, std::shared_ptr<const Wiring> wiring,
               ProcessId process, std::function<void(ProcessCut&&)> done);

  /// Begins the next cut, and gives the one that is not complete up. Its number.
  uint64_t begin();
  /// A cut has begun and is not complete.
  bool is_open() const;
  /// Gives up the cut that is not complete.
  void abandon();

  // CutSink. Parts of a cut that was given up are left out.
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
