/// The interface of the runtime to a resource (engine, learner, weight channel, ...): it can make
/// steps, it may have work, and on a virtual clock it reports the time that a step would have
/// taken.
///
/// Created, used and destroyed on the one thread of the actor group that owns it. Typed interfaces
/// (kernels/engine/engine.h, kernels/train/learner.h) derive from it.
#pragma once

#include <string>

#include "graph/base/blob.h"
#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

class Resource {
 public:
  virtual ~Resource() = default;

  /// One unit of its own work (an engine: one mixed batch). Called once in each work call of the
  /// actor group, before its actors' work(). The default has none.
  virtual Status step() { return ok(); }
  /// Whether step() would do something now.
  virtual bool has_work() const { return false; }
  /// The time that the calls since the last take_cost() would have taken. Zero for real resources,
  /// whose time passes by itself; scripted ones take it from a cost table. Used by the virtual
  /// clock.
  virtual Duration take_cost() { return Duration(); }
  /// The state with which a new resource of the same kind continues: only requests that were made
  /// and not answered. No weights and no KV cache: those come from a checkpoint, or are computed
  /// again. Called between two steps of its group; empty: no state.
  virtual Blob save_state() const { return {}; }
  /// Called on a new resource, before any other call.
  virtual Status restore_state(const Blob& state) {
    if (state.empty()) return ok();
    return error(Code::kCorrupt, "a resource without state got {} bytes of state", state.size());
  }
  /// One line for stall reports, for example "12 running, 3 waiting, 40 of 512 blocks free".
  virtual std::string describe() const { return {}; }
};

}  // namespace primerl
