/// EngineUser: what Prefill and Decode, the two users of an engine, have in common: they apply new
/// weights between two steps and say how busy the engine is.
///
///   update ~~~>  [ ... ] ~~~> applied, load
///
/// An update is answered with one PolicyApplied, also when it fails; while it waits for its bytes,
/// or until the engine has prepared them, a newer one of the same key takes its place. Keys do not
/// wait for each other; one handler applies one of them. Threads: the engine's.
#pragma once

#include <map>
#include <optional>

#include "actors/messages/load.h"
#include "actors/messages/policy.h"
#include "graph/contract.h"
#include "kernels/engine/engine.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

/// How soon a version whose bytes have not come yet is asked for again; the engine goes on
/// meanwhile.
inline constexpr Duration kWeightsRetry = Duration::milliseconds(20);

/// How soon an engine that prepares a version is asked again, which makes steps meanwhile; and how
/// often, before it has to apply it as it is.
inline constexpr Duration kPreparedRetry = Duration::milliseconds(1);
inline constexpr int32_t kPreparationsMax = 60'000;

/// An actor with the resources "engine" and "weights" and a timer "weights" for take_weights().
class EngineUser : public Actor {
 public:
  Status start(Resources& resources) override;
  Status drain() override;
  /// A router that was restarted knows nothing of the engine: it gets the load again.
  Status on_peer(const PeerEvent& event) override;

 protected:
  Status on_update(const PolicyUpdate& update);
  Status take_weights();
  /// Sends the load when it is news: a fresh one, in which the actor fills in what it counts
  /// itself.
  void tell_load(const EngineState& state);
  virtual void fill(EngineLoad& load, const EngineState& state) const = 0;
  virtual bool is_news(const EngineLoad& told, const EngineLoad& now) const = 0;
  /// What handlers change here, for the contract of the derived actor.
  template <class F>
  static void engine_fields(F& f) {
    using E = EngineUser;
    f("applied", &E::applied_)("coming", &E::coming_)("told_load", &E::told_load_);
  }

  Engine* engine_ = nullptr;
  Out<PolicyApplied> applied_out_;
  Out<EngineLoad> load_;

 private:
  /// An update that waits for its bytes.
  struct Coming {
    PolicyVersion version;
    StepRef cause;                 // the update
    int32_t num_preparations = 0;  // how often the engine was asked

    template <class F>
    static void fields(F& f) {
      f("version", &Coming::version)("cause", &Coming::cause)("num_preparations",
                                                              &Coming::num_preparations);
    }
  };
  /// Nothing when it was answered; else when to try again.
  std::optional<Duration> take(WeightsKey key);
  Result<std::optional<uint64_t>> apply(const std::shared_ptr<const WeightSnapshot>& snapshot,
                                        Coming& coming);

  WeightChannel* weights_ = nullptr;
  TenantSlot load_tenant_;  // any one: loads concern all tenants alike
  // Touched only by handlers.
  VersionsByKey applied_;
  std::map<WeightsKey, Coming> coming_;
  std::optional<EngineLoad> told_load_;
};

}  // namespace primerl
