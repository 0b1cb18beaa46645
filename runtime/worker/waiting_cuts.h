/// WaitingCuts: the cuts of a process with learners that wait for checkpoints, and the tenants that
/// are asked for one.
///
/// A cut may be written when every tenant has a committed checkpoint that is not older than the
/// cut, and newer if the tenant had open gradients, which no checkpoint has. The oldest waiting cut
/// is kept until then. If it has waited for `trace.cut_every`, tenants that have not passed it are
/// asked for a checkpoint, at most kAskedMax at once. Those that do not begin one are asked again
/// after `trace.cut_every`. All tenants that were asked then have a checkpoint after the cuts that
/// were made before, and the newest of these is written.
///
/// At most kWaitingCutsMax cuts wait, with at most kWaitingCutsBytesMax bytes. Beyond that the cut
/// is dropped whose predecessor and successor are closest in time, or, if only two are left, the
/// newer one. One cut is always kept, whatever its size.
///
/// If a client discards its open gradients and makes no further step, a cut that has them would
/// wait for ever. The worker then makes a new cut, and the older one is dropped (takes_new_cut()).
///
/// A tenant that was set aside makes no checkpoint any more. Newer cuts do not wait for it; older
/// ones that it has not passed are dropped. Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "graph/plan.h"
#include "runtime/trace/cut_file.h"

namespace primerl {

/// Tenants that are asked at the same time: each checkpoint is a copy in memory.
inline constexpr size_t kAskedMax = 16;

/// Approximate bytes of a cut in memory.
uint64_t bytes_of(const ProcessCut& cut);

class WaitingCuts {
 public:
  struct Request {
    TenantSlot tenant;
    int64_t step = 0;  // a checkpoint of this step or a later one
    friend bool operator==(const Request&, const Request&) = default;
  };

  /// `num_trained`: tenants whose learners are here. `newest`: step of the newest checkpoint by
  /// tenant slot.
  WaitingCuts(size_t num_trained, Duration cut_every, std::vector<int64_t> newest);

  /// The newest cut that may be written now, if there is one; older ones are dropped. `made` is
  /// newer than all others. `ended`: tenants that were set aside before it was made. A slot of its
  /// head with a number that is new here counts as joined.
  std::optional<CutFile> add(CutFile made, const std::set<TenantSlot>& ended = {});
  std::optional<CutFile> checkpoint_committed(TenantSlot tenant, int64_t step);
  /// Whether a cut waits for the step that would use the tenant's open gradients. That step may
  /// never come once they are discarded: a new cut takes the place of that one. True once per cut.
  bool takes_new_cut(TenantSlot tenant);
  /// Another tenant has the slot now. Its checkpoints count from the beginning; cuts that wait for
  /// one of the earlier tenant are dropped, because there will be none.
  void tenant_joined(TenantSlot slot, uint32_t tenancy);
  /// The tenant has left the slot, and makes no checkpoint any more: cuts that wait for one of it
  /// are dropped. Nothing happens if a later tenant has joined.
  void tenant_left(TenantSlot slot, uint32_t tenancy);
  /// The tenant's trainer writes a checkpoint of `step` now.
  void checkpoint_begun(TenantSlot tenant, int64_t step);
  /// The tenants to ask now. Call it regularly; `now` never decreases.
  std::vector<Request> requests(Time now);

  size_t size() const { return cuts_.size(); }
  /// Of all cuts.
  uint64_t num_bytes() const;

 private:
  struct Waiting {
    CutFile file;
    std::map<TenantSlot, int64_t> least_steps;  // of the checkpoints that it waits for
    uint64_t num_bytes = 0;
    std::set<TenantSlot> discarded;  // of tenants with open gradients: takes_new_cut() told it
    std::optional<Time> since;       // the first requests() that saw it
  };
  struct Asked {
    int64_t step = 0;
    Time at;
  };

  void drop_late(TenantSlot tenant);
  void drop_discarded(const CutHead& newer);
  bool may_be_written(const Waiting& cut) const;
  std::optional<CutFile> extract_newest();
  void drop_superfluous();
  size_t most_superfluous() const;

  const size_t cuts_max_;
  const Duration cut_every_;
  std::vector<int64_t> checkpoints_;       // newest step, by tenant slot
  std::map<TenantSlot, uint32_t> joined_;  // number of the newest tenant that joined the slot
  std::vector<Waiting> cuts_;              // oldest first
  std::map<TenantSlot, int64_t> open_;     // steps of checkpoints that are being written
  std::map<TenantSlot, Asked> requests_;   // without a checkpoint yet
};

}  // namespace primerl
