/// EngineUser: the base class of Prefill and Decode, the two actors that use an engine. It applies
/// new weights between two steps and reports the load of the engine.
///
///   update ~~~>  [ ... ] ~~~> applied, load
///
/// Every version that an update names and that is new here is answered with one PolicyApplied, also
/// when it fails; the version of the update itself always. A drop, and a snapshot that the channel
/// has forgotten, have no answer of their own: the answer repeats what is applied of the tenancy,
/// if anything. While a version waits for its bytes, or until the engine has prepared them, a newer
/// one of the same key replaces it. Keys do not wait for each other. One handler call applies at
/// most one of them, and sends at most one answer and one load. A snapshot that an update drops, or
/// no longer names, is dropped from the channel at once, and later requests for it are refused.
/// Prefill drops it from the engine, once none of its prompts waits there: their ends would have no
/// receiver. Its other sequences then end as cancelled. A node with `weights = "none"` has no
/// channel: its engine is frozen. Threads: the engine's.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "actors/messages/load.h"
#include "actors/messages/policy.h"
#include "graph/contract.h"
#include "kernels/engine/engine.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// How long to wait before a version whose bytes have not arrived is fetched again. The engine
/// keeps making steps meanwhile.
inline constexpr Duration kWeightsRetry = Duration::milliseconds(20);

/// The time before an engine that is preparing a version, and was asked `num_asked` times,
/// is asked again; it makes steps meanwhile. 1 ms at first and 20 ms in the end, because an engine
/// that is drained or slow should not wake the process a thousand times a second.
constexpr Duration prepared_retry(int32_t num_asked) {
  return Duration::milliseconds(std::min(1 + num_asked / 200, 20));
}
/// Questions before the version is applied without preparation: 58 s.
inline constexpr int32_t kPreparationsMax = 4'800;

/// An actor with the resources "engine" and "weights" (may be none) and a timer "weights" for
/// take_weights().
class EngineUser : public Actor {
 public:
  Status start(Resources& resources) override;
  Status drain() override;
  /// A router that was restarted knows nothing of the engine: it gets the load again.
  Status on_peer(const PeerEvent& event) override;
  /// At kLeave it drops the tenant's keys from the engine and the channel.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;

 protected:
  Status on_update(const PolicyUpdate& update);
  Status take_weights();
  /// The weights that generate for a request of a tenant: those that it names, or those of the
  /// folder of a frozen engine. An error names a snapshot that this engine does not have.
  Result<WeightsKey> key_for(TenantSlot tenant, AdapterId adapter) const;
  /// Sends a new EngineLoad when it differs from the last one. The derived actor fills in its own
  /// counts.
  void send_load(const EngineState& state) { send_load(state, std::nullopt, {}); }
  virtual void fill(EngineLoad& load, const EngineState& state) const = 0;
  virtual bool has_changed(const EngineLoad& told, const EngineLoad& now) const = 0;
  /// The snapshot takes no more requests, and the channel has forgotten it.
  virtual void on_drop(WeightsKey) {}
  /// The members that handlers change here, for the contract of the derived actor.
  template <class F>
  static void engine_fields(F& f) {
    using E = EngineUser;
    f("applied", &E::applied_)("coming", &E::coming_)("told_load", &E::sent_load_);
  }

  Engine* engine_ = nullptr;
  Out<PolicyApplied> applied_out_;
  Out<EngineLoad> load_;

 private:
  /// A paused tenant may be draining, and a load of it would be one more of its messages.
  void choose_load_tenant();
  void drop_tenant(TenantSlot slot);
  /// An update whose bytes have not arrived, or that the engine is preparing.
  struct Coming {
    PolicyVersion version;
    StepRef cause;                 // the step that delivered the update
    int32_t num_preparations = 0;  // how often the engine was asked

    template <class F>
    static void fields(F& f) {
      f("version", &Coming::version)("cause", &Coming::cause)("num_preparations",
                                                              &Coming::num_preparations);
    }
  };
  /// Applies the update of `key` and answers it. Empty when it is settled, else how long to wait
  /// before the next try. If it sends a load, that one reports `gone`, and the list is empty then:
  /// a handler sends one load.
  std::optional<Duration> take(WeightsKey key, std::vector<WeightsKey>& gone);
  bool is_forgotten(WeightsKey key) const;
  /// Fills in the engine, `key`, and what is applied of other keys of its tenancy.
  void send_answer(PolicyApplied answer, WeightsKey key, StepRef cause);
  /// Repeats the version of the moving key of `key`, or of a snapshot that is left without one. If
  /// nothing else of the tenancy is applied, it sends nothing.
  void answer_for_others(WeightsKey key, StepRef cause);
  Result<std::optional<uint64_t>> apply(const std::shared_ptr<const WeightSnapshot>& snapshot,
                                        Coming& coming);

  /// Drops the snapshots of the tenancy of `key` that the update does not name. Returns them.
  std::vector<WeightsKey> drop_unnamed(const PolicyUpdate& update, WeightsKey key);
  /// `changed`: a key whose version was applied since the last load; `gone`: keys that were
  /// dropped.
  void send_load(const EngineState& state, std::optional<WeightsKey> changed,
                 const std::vector<WeightsKey>& gone);
  void add_changes(EngineLoad& load, std::optional<WeightsKey> changed,
                   const std::vector<WeightsKey>& gone) const;

  WeightChannel* weights_ = nullptr;  // null: the engine is frozen
  // Both follow from the tenants and on_tenant(), and are not saved.
  TenantSlot load_tenant_;            // any tenant: a load concerns all of them
  std::map<TenantSlot, bool> known_;  // tenants that every process knows; true: it is paused
  // Touched only by handlers.
  VersionsByKey applied_;
  std::map<WeightsKey, Coming> coming_;
  std::optional<EngineLoad> sent_load_;
};

}  // namespace primerl
