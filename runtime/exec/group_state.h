/// GroupState: the complete state of an ActorGroup between two steps, as plain values: the actors'
/// fields named by their contracts, inputs, credits, outboxes, timers and counters.
/// ActorGroup::state() makes it. ActorGroup::restore() puts it into a fresh group of the same plan,
/// which then does the same as the first group would have done. A cut (docs/design/recovery.md) is
/// made of these.
///
/// Numbers of instances, links and tenants refer to the plan, so a state is valid only with its own
/// plan. Values, no threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/contract.h"
#include "graph/tenant_change.h"
#include "runtime/wire/message_batch.h"

namespace primerl {

/// Fields as msgpack, and the Blobs that they refer to.
struct SavedFields {
  Blob body;
  std::vector<Blob> blobs;

  template <class F>
  static void fields(F& f) {
    f("body", &SavedFields::body)("blobs", &SavedFields::blobs);
  }
};

/// Saves the actor's fields that the contract names; empty for an actor without fields.
SavedFields save_actor(const Contract& contract, const Actor& actor);
/// kCorrupt when the bytes do not have the contract's fields; then the actor must not be used any
/// more.
Status restore_actor(const Contract& contract, const SavedFields& saved, Actor& actor);

/// A saved Envelope. Its type is that of the port where it arrived or left.
struct SavedMessage {
  LinkId link;
  TenantSlot tenant;
  InstanceId origin;
  uint32_t incarnation = 0;
  uint64_t sequence = 0, sender_step = 0;
  StepRef cause;
  Time sent_at;
  uint64_t blob_bytes = 0;
  SavedFields payload;

  template <class F>
  static void fields(F& f) {
    using M = SavedMessage;
    f("link", &M::link)("tenant", &M::tenant)("origin", &M::origin)("incarnation", &M::incarnation)(
        "sequence", &M::sequence)("sender_step", &M::sender_step)("cause", &M::cause)(
        "sent_at", &M::sent_at)("blob_bytes", &M::blob_bytes)("payload", &M::payload);
  }
};

SavedMessage saved_message(LinkId link, const Envelope& envelope);

struct SavedInput {
  uint8_t kind = 0;  // StepKind
  uint32_t actor = 0;
  uint32_t timer = 0;       // index of a timer; for a command its input
  uint64_t generation = 0;  // for a timer; for a command its number; for a change of a tenant 1
                            // if its actors drain
  uint64_t arrival = 0;
  Time arrived;
  std::optional<SavedMessage> message;  // for a message; for a command, without a link
  bool peer_is_up = false;              // for a peer event
  InstanceId peer;
  uint32_t peer_incarnation = 0;
  std::optional<TenantChange> tenant_change;  // for a change of a tenant

  template <class F>
  static void fields(F& f) {
    using I = SavedInput;
    f("kind", &I::kind)("actor", &I::actor)("timer", &I::timer)("generation", &I::generation)(
        "arrival", &I::arrival)("arrived", &I::arrived)("message", &I::message)(
        "peer_is_up", &I::peer_is_up)("peer", &I::peer)("peer_incarnation", &I::peer_incarnation)(
        "tenant_change", &I::tenant_change);
  }
};

struct SavedTimer {
  Time due;
  uint32_t actor = 0;
  uint32_t timer = 0;
  uint64_t generation = 0;

  template <class F>
  static void fields(F& f) {
    using T = SavedTimer;
    f("due", &T::due)("actor", &T::actor)("timer", &T::timer)("generation", &T::generation);
  }
};

/// When an actor was replaced, and which tenant's message caused it; none if the message had no
/// tenant.
struct ActorRestart {
  Time at;
  TenantSlot tenant;

  template <class F>
  static void fields(F& f) {
    f("at", &ActorRestart::at)("tenant", &ActorRestart::tenant);
  }
};

struct SavedActor {
  SavedFields state;
  std::map<std::string, int64_t> counters;
  std::vector<uint64_t> timer_generations;
  std::vector<ActorRestart> restarts;
  bool has_drained = false;
  bool stops_on_error = false;
  bool is_draining = false;  // its work calls were told that the run drains

  template <class F>
  static void fields(F& f) {
    using A = SavedActor;
    f("state", &A::state)("counters", &A::counters)("timer_generations", &A::timer_generations)(
        "restarts", &A::restarts)("has_drained", &A::has_drained)(
        "stops_on_error", &A::stops_on_error)("is_draining", &A::is_draining);
  }
};

/// The receiving side of a link (InLink).
struct SavedInLink {
  uint32_t incarnation = 0;
  uint64_t last_sequence = 0, last_sender_step = 0, num_received_incarnation = 0;
  uint64_t settled_messages = 0, settled_bytes = 0;
  uint64_t granted_messages = 0, granted_bytes = 0, excess = 0;
  bool is_ungranted = false, is_paused = false;
  uint64_t num_received = 0, num_handled = 0, num_failed = 0, num_overwritten = 0;
  uint64_t num_refused_duplicates = 0, num_refused_incarnations = 0;
  uint64_t waiting_max = 0, sent_by_dead = 0;

  template <class F>
  static void fields(F& f) {
    using L = SavedInLink;
    f("incarnation", &L::incarnation)("last_sequence", &L::last_sequence)(
        "last_sender_step", &L::last_sender_step)("num_received_incarnation",
                                                  &L::num_received_incarnation)(
        "settled_messages", &L::settled_messages)("settled_bytes", &L::settled_bytes)(
        "granted_messages", &L::granted_messages)("granted_bytes", &L::granted_bytes)(
        "excess", &L::excess)("is_ungranted", &L::is_ungranted)("is_paused", &L::is_paused)(
        "num_received", &L::num_received)("num_handled", &L::num_handled)(
        "num_failed", &L::num_failed)("num_overwritten", &L::num_overwritten)(
        "num_refused_duplicates", &L::num_refused_duplicates)(
        "num_refused_incarnations", &L::num_refused_incarnations)("waiting_max", &L::waiting_max)(
        "sent_by_dead", &L::sent_by_dead);
  }
};

/// The sending side of a link (OutLink).
struct SavedOutLink {
  bool is_live = true;
  uint64_t num_emitted = 0, num_shipped = 0, num_settled = 0, num_overwritten = 0;
  uint64_t last_settled_sequence = 0;
  uint64_t bytes_emitted = 0, bytes_shipped = 0, bytes_settled = 0;
  uint64_t past_sent = 0, past_handled = 0, past_dropped = 0, num_returned = 0;
  uint64_t waiting_max = 0, full_since_ns = 0, blocked_ns = 0;
  std::vector<SavedMessage> outbox;
  std::vector<SavedMessage> unacknowledged;  // remote links only

  template <class F>
  static void fields(F& f) {
    using L = SavedOutLink;
    f("is_live", &L::is_live)("num_emitted", &L::num_emitted)("num_shipped", &L::num_shipped)(
        "num_settled", &L::num_settled)("last_settled_sequence", &L::last_settled_sequence)(
        "num_overwritten", &L::num_overwritten)("bytes_emitted", &L::bytes_emitted)(
        "bytes_shipped", &L::bytes_shipped)("bytes_settled", &L::bytes_settled)(
        "past_sent", &L::past_sent)("past_handled", &L::past_handled)(
        "past_dropped", &L::past_dropped)("num_returned", &L::num_returned)(
        "waiting_max", &L::waiting_max)("full_since_ns", &L::full_since_ns)(
        "blocked_ns", &L::blocked_ns)("outbox", &L::outbox)("unacknowledged", &L::unacknowledged);
  }
};

/// The incarnation of another group's process.
struct SavedPeer {
  GroupId group;
  uint32_t incarnation = 0;  // grants of older incarnations are ignored

  template <class F>
  static void fields(F& f) {
    f("group", &SavedPeer::group)("incarnation", &SavedPeer::incarnation);
  }
};

/// A slot with a tenant that joined while the run lived.
struct SavedSlot {
  TenantSlot slot;
  uint32_t tenancy = 0;
  std::string name;
  std::string table;         // of its TenantChange
  bool has_started = false;  // kStart was made
  bool is_paused = false;
  int64_t begins_at = 0;  // of its TenantChange

  template <class F>
  static void fields(F& f) {
    using S = SavedSlot;
    f("slot", &S::slot)("tenancy", &S::tenancy)("name", &S::name)("table", &S::table)(
        "has_started", &S::has_started)("is_paused", &S::is_paused)("begins_at", &S::begins_at);
  }
  friend bool operator==(const SavedSlot&, const SavedSlot&) = default;
};

struct GroupState {
  GroupId group;
  Time at;                   // by the run's clock
  uint32_t incarnation = 0;  // that its own messages carry
  uint64_t num_steps = 0;
  uint64_t num_shipped = 0, num_received = 0;
  uint64_t num_restarts = 0, num_abandoned = 0;
  uint64_t last_arrival = 0;
  bool is_draining = false;
  std::set<TenantSlot> finished;             // tenants for which services().finish() was called
  std::map<TenantSlot, std::string> failed;  // tenants that failed here, with the reason
  std::set<TenantSlot> set_aside;
  std::vector<SavedSlot> slots;              // tenants that joined and have not left, by slot
  std::map<TenantSlot, uint32_t> left;       // newest tenancy of each free slot that a tenant left
  std::set<TenantSlot> paused;               // slots of the file's tenants that are paused
  std::map<TenantSlot, std::string> values;  // values that were set (graph/tenant_values.h)
  std::set<TenantSlot> leaving;              // slots that drain without a failure
  bool work_armed = false;
  uint64_t work_arrival = 0;
  std::vector<SavedActor> actors;       // in the order of the group's instances
  std::vector<SavedInLink> in_links;    // by in_index
  std::vector<SavedOutLink> out_links;  // by out_index
  std::vector<SavedInput> inputs;       // in order of arrival
  std::vector<SavedTimer> timers;
  std::vector<SavedPeer> peers;
  /// By tenant slot: messages of the slot between groups of the process (SlotCounts).
  std::vector<uint64_t> slot_shipped, slot_received;
  std::vector<Blob> resources;  // Resource::save_state() of the group's own resources

  template <class F>
  static void fields(F& f) {
    using G = GroupState;
    f("group", &G::group)("at", &G::at)("incarnation", &G::incarnation)("num_steps", &G::num_steps)(
        "num_shipped", &G::num_shipped)("num_received", &G::num_received)(
        "num_restarts", &G::num_restarts)("num_abandoned", &G::num_abandoned)(
        "last_arrival", &G::last_arrival)("is_draining", &G::is_draining)("finished", &G::finished)(
        "failed", &G::failed)("set_aside", &G::set_aside)("slots", &G::slots)("left", &G::left)(
        "paused", &G::paused)("values", &G::values)("leaving", &G::leaving)(
        "work_armed", &G::work_armed)("work_arrival", &G::work_arrival)("actors", &G::actors)(
        "in_links", &G::in_links)("out_links", &G::out_links)("inputs", &G::inputs)(
        "timers", &G::timers)("peers", &G::peers)("slot_shipped", &G::slot_shipped)(
        "slot_received", &G::slot_received)("resources", &G::resources);
  }
};

/// Converts a state to bytes and back; kCorrupt for invalid bytes.
SavedFields encode_group_state(const GroupState& state);
Result<GroupState> decode_group_state(const SavedFields& bytes);

}  // namespace primerl
