/// The report of an engine to the router, and the message that pauses an engine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/message.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// Running totals and current counts. Only the newest message matters.
struct EngineLoad {
  static constexpr std::string_view kName = "EngineLoad";
  static constexpr uint32_t kVersion = 6;

  InstanceId engine;          // the prefill or decode instance that sends this
  uint64_t num_finished = 0;  // requests that ended here since the start; open requests = sent -
                              // finished
  uint64_t num_received = 0;  // requests that arrived here since the start, finished ones included
  /// Requests that a prefill instance can queue beyond those received. A router that has sent more
  /// than num_received counts the difference against it.
  int32_t num_room = 0;
  /// Since the engine was created: sequences that ended as requested (kStop, kLength), and
  /// sequences that it could not compute (kFailed). Refused and cancelled sequences, and those that
  /// found no free space, are in neither.
  uint64_t num_completed = 0;
  uint64_t num_failed = 0;
  int32_t num_waiting = 0;
  int32_t num_running = 0;
  int32_t num_free_blocks = 0;
  int32_t num_blocks = 0;
  /// Versions that the engine applied and that the router may not know yet. The first load of a
  /// connection has all of them; later ones those that changed since the last load that arrived.
  /// The router uses an engine for a key once it has applied the live version.
  VersionsByKey applied;
  bool is_whole = false;         // `applied` has all versions of the engine
  std::vector<WeightsKey> gone;  // snapshots that the engine dropped, as for `applied`

  bool has_versions() const { return is_whole || !applied.empty() || !gone.empty(); }

  template <class F>
  static void fields(F& f) {
    using L = EngineLoad;
    f("engine", &L::engine)("num_finished", &L::num_finished)("num_received", &L::num_received)(
        "num_room", &L::num_room)("num_waiting", &L::num_waiting)("num_running", &L::num_running)(
        "num_free_blocks", &L::num_free_blocks)("num_blocks", &L::num_blocks)(
        "num_completed", &L::num_completed)("num_failed", &L::num_failed)("applied", &L::applied)(
        "is_whole", &L::is_whole)("gone", &L::gone);
  }
};

/// Pauses an engine for `owner`, or ends that pause. While any owner pauses it, its sequences keep
/// their KV and make no tokens. Each owner has one lease; its next message replaces the lease, and
/// a lease that is not renewed ends by itself.
struct EngineHold {
  static constexpr std::string_view kName = "EngineHold";
  static constexpr uint32_t kVersion = 1;

  std::string owner;
  Duration lease;  // counted from arrival; 0: the owner ends its pause

  template <class F>
  static void fields(F& f) {
    f("owner", &EngineHold::owner)("lease", &EngineHold::lease);
  }
};

}  // namespace primerl
