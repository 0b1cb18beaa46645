/// What an engine tells the router about itself, and how it is made to stand still.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/message.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// Running totals and a snapshot. Newest wins.
struct EngineLoad {
  static constexpr std::string_view kName = "EngineLoad";
  static constexpr uint32_t kVersion = 4;

  InstanceId engine;          // the prefill or decode instance that speaks
  uint64_t num_finished = 0;  // requests ended here since the start: guard = sent - finished
  uint64_t num_received = 0;  // requests that came here since the start, those included
  /// Requests that it queues beyond those received. Of a prefill instance; whoever sent more than
  /// it received holds the difference back.
  int32_t num_room = 0;
  /// Of the engine, since it was made: sequences that it ended as was asked (kStop, kLength), and
  /// those that it could not compute (kFailed). What was refused, cancelled or had no room is in
  /// neither.
  uint64_t num_completed = 0;
  uint64_t num_failed = 0;
  int32_t num_waiting = 0;
  int32_t num_running = 0;
  int32_t num_free_blocks = 0;
  int32_t num_blocks = 0;
  VersionsByKey applied;  // the router uses an engine only from a key's live version on

  template <class F>
  static void fields(F& f) {
    using L = EngineLoad;
    f("engine", &L::engine)("num_finished", &L::num_finished)("num_received", &L::num_received)(
        "num_room", &L::num_room)("num_waiting", &L::num_waiting)("num_running", &L::num_running)(
        "num_free_blocks", &L::num_free_blocks)("num_blocks", &L::num_blocks)(
        "num_completed", &L::num_completed)("num_failed", &L::num_failed)("applied", &L::applied);
  }
};

/// Holds an engine still for `owner`, or lets it go: its sequences keep their KV and make no token
/// until no owner holds it. Each owner has one lease, which the next message of that name replaces;
/// one that is not renewed ends by itself.
struct EngineHold {
  static constexpr std::string_view kName = "EngineHold";
  static constexpr uint32_t kVersion = 1;

  std::string owner;
  Duration lease;  // from its arrival; 0: the owner lets go

  template <class F>
  static void fields(F& f) {
    f("owner", &EngineHold::owner)("lease", &EngineHold::lease);
  }
};

}  // namespace primerl
