/// Makes new policy versions live: sends an update to every engine, waits until all have applied
/// it, then notifies the rollouts.
///
///   weights  ->  [ broadcaster ]  ~~~> update, live
///   applied ~~~>
///
/// Threads: pooled. State: the update in flight of each key (WeightsKey: tenant and adapter), at
/// most kWeightsKeysMax keys. Order: one update of a key at a time; of the versions that arrive
/// meanwhile only the newest follows. Keys do not wait for each other: tenants may share a
/// broadcaster, and their versions may have equal numbers. A handler sends at most one message of a
/// tenant on each output, with all its keys. A snapshot that is dropped is forgotten here, and the
/// engines drop it; nothing waits for that. An engine that has not answered within `applied_max` is
/// set aside for that key: the broadcaster does not wait for it until it has applied the live
/// version. If every engine reports that it cannot apply an update, no later version could become
/// live. The tenant then fails with the text of the last report, and later messages for its keys
/// are ignored.
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
  /// `keys_max`: how many keys it may have; engines and channels may have as many.
  explicit Broadcaster(const BroadcasterOptions& options, size_t keys_max = kWeightsKeysMax)
      : options_(options), keys_max_(keys_max) {}

  Status on_peer(const PeerEvent& event) override;
  /// At kLeave it forgets the tenant's keys.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;

 private:
  /// What one engine has applied for one key.
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
    PolicyVersion newest;         // newest version that the trainer published
    std::optional<Time> late_at;  // when the engines that have not applied the update are set aside
    bool is_given_up = false;     // no engine could apply a version: later versions are ignored

    template <class F>
    static void fields(F& f) {
      using R = KeyRecord;
      f("engines", &R::engines)("live", &R::live)("updating", &R::updating)("newest", &R::newest)(
          "late_at", &R::late_at)("is_given_up", &R::is_given_up);
    }
  };

  /// The keys of a tenant that a handler changed: the first one for each output. The message has
  /// the others too.
  struct Change {
    std::optional<WeightsKey> live;
    std::optional<WeightsKey> update;
  };
  using Changes = std::map<WeightsKey, Change>;  // by moving key

  Status on_weights(const WeightsReady& ready);
  Status drop(WeightsKey key);
  Status on_applied(const PolicyApplied& applied);
  Status on_timeout();

  void begin(WeightsKey key, KeyRecord& record, PolicyVersion version, Changes& changes);
  /// Makes the update live when every engine that counts has applied it; then begins the next one.
  void make_live_if_applied(WeightsKey key, KeyRecord& record, Changes& changes);
  void set_late_aside(WeightsKey key, KeyRecord& record, Changes& changes);
  void take_applied(WeightsKey key, KeyRecord& record, InstanceId engine, PolicyVersion version);
  void take_fault(WeightsKey key, KeyRecord& record, const PolicyApplied& applied);
  /// Null: the key is an unknown snapshot, so it was dropped.
  KeyRecord* record_of(WeightsKey key);
  void send(const Changes& changes);
  PolicyUpdate update_of(WeightsKey key) const;
  PolicyLive live_of(WeightsKey key) const;
  /// The other keys of the tenancy of `key`, where `version_of(record)` is not none.
  template <class F>
  std::vector<AdapterVersion> others_of(WeightsKey key, const F& version_of) const;
  /// Sets the one timer to the earliest `late_at`.
  void arm();
  std::string name_of(WeightsKey key, PolicyVersion version) const;

  const BroadcasterOptions options_;
  const size_t keys_max_;
  // Touched only by handlers.
  std::map<WeightsKey, KeyRecord> keys_;
  std::optional<Time> armed_;
  Out<PolicyUpdate> update_;
  Out<PolicyLive> live_out_;
};

}  // namespace primerl
