/// The messages that make a new policy version live:
///
///   trainer --WeightsReady--> broadcaster ~~PolicyUpdate~~> prefill, decode
///   broadcaster <~~PolicyApplied~~ prefill, decode;   broadcaster ~~PolicyLive~~> rollout
///   the trainer's process --CheckpointRequest--> trainer
///
/// The weights travel through the weight channel. These messages only name versions of keys of the
/// envelope's tenant. `adapter` is the key's; none is the tenant's moving key, and key_of() of
/// actors/common/tenant_key.h makes the key. A tenant without a client has no other key.
///
/// The inputs of the last three keep only the newest message of a tenant. So each of these messages
/// has one change and, in `others`, all other keys of the tenant as they are: a message that
/// replaces another one loses nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/message.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// One of the tenant's keys, with a version.
struct AdapterVersion {
  AdapterId adapter;
  PolicyVersion version;
  friend constexpr auto operator<=>(const AdapterVersion&, const AdapterVersion&) = default;

  template <class F>
  static void fields(F& f) {
    f("adapter", &AdapterVersion::adapter)("version", &AdapterVersion::version);
  }
};

/// `version` is in the weight channel; or a snapshot is used no more, and will not be published
/// again.
struct WeightsReady {
  static constexpr std::string_view kName = "WeightsReady";
  static constexpr uint32_t kVersion = 2;

  PolicyVersion version{};
  bool is_last = false;  // no later version follows: the tenant has finished
  AdapterId adapter{};
  bool is_dropped = false;  // only a snapshot; `version` is none then

  template <class F>
  static void fields(F& f) {
    using W = WeightsReady;
    f("version", &W::version)("is_last", &W::is_last)("adapter", &W::adapter)("is_dropped",
                                                                              &W::is_dropped);
  }
};

/// Apply `version` at the next step boundary, or drop the snapshot. Of other keys apply what is
/// missing; drop each snapshot of the tenant that the message does not name.
struct PolicyUpdate {
  static constexpr std::string_view kName = "PolicyUpdate";
  static constexpr uint32_t kVersion = 2;

  PolicyVersion version{};
  AdapterId adapter{};
  bool is_dropped = false;  // `version` is none then
  std::vector<AdapterVersion> others{};

  template <class F>
  static void fields(F& f) {
    using P = PolicyUpdate;
    f("version", &P::version)("adapter", &P::adapter)("is_dropped", &P::is_dropped)("others",
                                                                                    &P::others);
  }
};

/// One receiver has applied (or could not apply) `version`.
struct PolicyApplied {
  static constexpr std::string_view kName = "PolicyApplied";
  static constexpr uint32_t kVersion = 2;

  PolicyVersion version;
  InstanceId engine;
  uint64_t num_tensors = 0;  // 0 = it had this version already
  std::string fault;         // not empty: the old weights are still in place
  AdapterId adapter{};
  std::vector<AdapterVersion> others{};  // what it has applied of other keys

  template <class F>
  static void fields(F& f) {
    using P = PolicyApplied;
    f("version", &P::version)("engine", &P::engine)("num_tensors", &P::num_tensors)(
        "fault", &P::fault)("adapter", &P::adapter)("others", &P::others);
  }
};

/// Every engine in use has applied `version`. If the key is the tenant's moving key, groups may
/// open under it; a snapshot can be sampled from.
struct PolicyLive {
  static constexpr std::string_view kName = "PolicyLive";
  static constexpr uint32_t kVersion = 2;

  PolicyVersion version;
  AdapterId adapter{};
  std::vector<AdapterVersion> others{};  // the live versions of other keys

  template <class F>
  static void fields(F& f) {
    using P = PolicyLive;
    f("version", &P::version)("adapter", &P::adapter)("others", &P::others);
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
