/// What the runtime knows of a resource (engine, learner, weight channel, ...): it can be stepped,
/// it has work or not, and on a virtual clock it says what a step would have cost.
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

  /// One unit of own work (an engine: one mixed batch). Called once per work turn of the group
  /// group, before its actors' work(). The default has none.
  virtual Status step() { return ok(); }
  /// Whether step() would do something now.
  virtual bool has_work() const { return false; }
  /// Time the calls since the last take_cost() would have needed: zero for real resources (their
  /// time passes by itself), from the cost table for scripted ones. The virtual clock uses it.
  virtual Duration take_cost() { return Duration(); }
  /// What its owner needs of it to go on with a fresh resource of the same kind: no more than what
  /// calls have asked of it and were not answered. Not weights, not a KV cache: those come from a
  /// checkpoint, or are computed again. Between two steps of its group; empty: nothing.
  virtual Blob save_state() const { return {}; }
  /// Of a fresh one, before its first call.
  virtual Status restore_state(const Blob& state) {
    if (state.empty()) return ok();
    return error(Code::kCorrupt, "a resource that has no state got {} bytes of one", state.size());
  }
  /// One line for stall reports: "12 running, 3 waiting, 40 of 512 blocks free".
  virtual std::string describe() const { return {}; }
};

}  // namespace primerl
