/// Makes a new policy version live: tells every engine, waits for all, then tells the rollouts.
///
///   weights  ->  [ broadcaster ]  ~~~> update, live
///   applied ~~~>
///
/// Threads: pooled. State: the update in flight. Order: one update at a time; of those that come
/// meanwhile only the newest follows. An engine that has not answered within `applied_max` is set
/// aside: nobody waits for it until it has applied the live version again. When every engine says
/// that it cannot apply an update, nothing that follows could go live: the run ends with the words
/// of the one that said so last.
#pragma once

#include <map>
#include <optional>

#include "actors/messages/policy.h"
#include "graph/contract.h"

namespace primerl {

struct BroadcasterOptions {
  Duration applied_max = Duration::seconds(60);
};

class Broadcaster final : public Actor {
 public:
  using Options = BroadcasterOptions;
  static Contract contract();
  explicit Broadcaster(const BroadcasterOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Status on_peer(const PeerEvent& event) override;

 private:
  struct EngineRecord {
    PolicyVersion applied;
    bool is_set_aside = false;
    PolicyVersion refused;  // newest version that it could not apply

    template <class F>
    static void fields(F& f) {
      using R = EngineRecord;
      f("applied", &R::applied)("is_set_aside", &R::is_set_aside)("refused", &R::refused);
    }
  };

  Status on_weights(const WeightsReady& ready);
  Status on_applied(const PolicyApplied& applied);
  Status on_timeout();

  void begin(PolicyVersion version);
  /// Makes the update live when nobody is waited for; begins the next one.
  void settle();
  void send_update(PolicyVersion version);
  bool all_have_refused(PolicyVersion version) const;

  const BroadcasterOptions options_;
  TenantSlot tenant_;
  // Touched only by handlers.
  std::map<InstanceId, EngineRecord> engines_;
  PolicyVersion live_;
  PolicyVersion updating_;  // none when no update is in flight
  PolicyVersion newest_;    // asked for
  Out<PolicyUpdate> update_;
  Out<PolicyLive> live_out_;
};

}  // namespace primerl
