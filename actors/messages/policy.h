/// The messages that make a new policy version live:
///
///   trainer --WeightsReady--> broadcaster ~~PolicyUpdate~~> prefill, decode
///   broadcaster <~~PolicyApplied~~ prefill, decode;   broadcaster ~~PolicyLive~~> rollout
///   the trainer's process --CheckpointRequest--> trainer
///
/// The weights travel through the weight channel. These messages only name versions: of all weights
/// of the envelope's tenant. Only the tenant distinguishes equal version numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/message.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// `version` is in the weight channel.
struct WeightsReady {
  static constexpr std::string_view kName = "WeightsReady";
  static constexpr uint32_t kVersion = 1;

  PolicyVersion version;
  bool is_last = false;  // no later version follows: the tenant has finished

  template <class F>
  static void fields(F& f) {
    f("version", &WeightsReady::version)("is_last", &WeightsReady::is_last);
  }
};

/// Apply `version` at the next step boundary.
struct PolicyUpdate {
  static constexpr std::string_view kName = "PolicyUpdate";
  static constexpr uint32_t kVersion = 1;

  PolicyVersion version;

  template <class F>
  static void fields(F& f) {
    f("version", &PolicyUpdate::version);
  }
};

/// One receiver has applied (or could not apply) `version`.
struct PolicyApplied {
  static constexpr std::string_view kName = "PolicyApplied";
  static constexpr uint32_t kVersion = 1;

  PolicyVersion version;
  InstanceId engine;
  uint64_t num_tensors = 0;  // 0 = it had this version already
  std::string fault;         // not empty: the old weights are still in place

  template <class F>
  static void fields(F& f) {
    f("version", &PolicyApplied::version)("engine", &PolicyApplied::engine)(
        "num_tensors", &PolicyApplied::num_tensors)("fault", &PolicyApplied::fault);
  }
};

/// Every engine in use has applied `version`: groups may open under it.
struct PolicyLive {
  static constexpr std::string_view kName = "PolicyLive";
  static constexpr uint32_t kVersion = 2;

  PolicyVersion version;
  AdapterId adapter;  // whose version it is; none: the tenant's moving key

  template <class F>
  static void fields(F& f) {
    f("version", &PolicyLive::version)("adapter", &PolicyLive::adapter);
  }
};

/// Begin a checkpoint between two steps, unless one of `step` or later exists. A process with
/// several tenants sends it as a command to a trainer whose checkpoint a saved state waits for.
struct CheckpointRequest {
  static constexpr std::string_view kName = "CheckpointRequest";
  static constexpr uint32_t kVersion = 1;

  int64_t step = 0;

  template <class F>
  static void fields(F& f) {
    f("step", &CheckpointRequest::step);
  }
};

}  // namespace primerl
