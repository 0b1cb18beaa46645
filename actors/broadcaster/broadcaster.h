/// Makes new policy versions live: tells every engine, waits for all, then tells the rollouts.
///
///   weights  ->  [ broadcaster ]  ~~~> update, live
///   applied ~~~>
///
/// Threads: pooled. State: the update in flight of each key. Order: one update of a key at a time;
/// of those that come meanwhile only the newest follows. Keys do not wait for each other: tenants
/// may share a broadcaster, and their versions may have equal numbers. An engine that has not
/// answered within `applied_max` is set aside for that key: nobody waits for it until it has
/// applied the live version again. When every engine says that it cannot apply an update, nothing
/// that follows could go live: that tenant cannot go on, with the words of the one that said so
/// last; what comes of her keys after that is left.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "actors/messages/policy.h"
#include "graph/contract.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

struct BroadcasterOptions {
  Duration applied_max = Duration::seconds(60);
};

class Broadcaster final : public Actor {
 public:
  using Options = BroadcasterOptions;
  static Contract contract();
  explicit Broadcaster(const BroadcasterOptions& options) : options_(options) {}

  Status on_peer(const PeerEvent& event) override;

 private:
  /// What one engine has of one key.
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
  struct KeyRecord {
    std::map<InstanceId, EngineRecord> engines;
    PolicyVersion live;
    PolicyVersion updating;       // none when no update is in flight
    PolicyVersion newest;         // asked for
    std::optional<Time> late_at;  // until then the update in flight is waited for
    bool is_given_up = false;     // no engine could apply it: nothing of it goes live any more

    template <class F>
    static void fields(F& f) {
      using R = KeyRecord;
      f("engines", &R::engines)("live", &R::live)("updating", &R::updating)("newest", &R::newest)(
          "late_at", &R::late_at)("is_given_up", &R::is_given_up);
    }
  };

  Status on_weights(const WeightsReady& ready);
  Status on_applied(const PolicyApplied& applied);
  Status on_timeout();

  void begin(WeightsKey key, KeyRecord& record, PolicyVersion version);
  /// Makes the update live when nobody is waited for; begins the next one.
  void settle(WeightsKey key, KeyRecord& record);
  void set_late_aside(WeightsKey key, KeyRecord& record);
  void send_update(WeightsKey key, PolicyVersion version);
  /// The one timer, for the update that is late first.
  void arm();
  std::string name_of(WeightsKey key, PolicyVersion version) const;

  const BroadcasterOptions options_;
  // Touched only by handlers.
  std::map<WeightsKey, KeyRecord> keys_;
  std::optional<Time> armed_;
  Out<PolicyUpdate> update_;
  Out<PolicyLive> live_out_;
};

}  // namespace primerl
