/// Actor: a plain class with state and handlers that handles one message at a time.
///
/// The runtime guarantees: the constructor gets parsed options; then the actor group sets services
/// and outputs and calls start() once; after that handlers, timers, work() and on_peer() run one at
/// a time, always in the same actor group. If a handler returns an error, only that message stops.
/// drain() is called once when the run ends, early or not; after it the actor starts nothing new
/// but still handles messages that arrive. Actors start no thread, hold no lock and read no clock.
#pragma once

#include <string>
#include <string_view>
#include <typeinfo>

#include "graph/base/resource.h"
#include "graph/base/services.h"
#include "graph/tenant_change.h"

namespace primerl {

/// The resources that a contract declared with `.uses<R>(name, ...)`, by that name.
class Resources {
 public:
  virtual ~Resources() = default;
  template <class R>
  R& get(std::string_view use) {
    auto* found = dynamic_cast<R*>(find(use));
    CHECK(found != nullptr, "a resource was asked for that the contract does not use");
    return *found;
  }
  /// Null if there is none.
  template <class R>
  R* get_if(std::string_view use) {
    return dynamic_cast<R*>(find(use));
  }

 protected:
  virtual Resource* find(std::string_view use) = 0;
};

/// The process of a connected instance died or came back.
struct PeerEvent {
  enum class Kind { kDown, kUp } kind = Kind::kDown;
  InstanceId instance;
  uint32_t incarnation = 0;
};

class Actor {
 public:
  Actor() = default;
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;
  virtual ~Actor() = default;

  /// Gets the resources. May set timers; must not send.
  virtual Status start(Resources& resources) {
    (void)resources;
    return ok();
  }
  /// One bounded unit of the actor's own work; true = there is more. Called only if the contract
  /// says works(). It is scheduled by every handler of the actor group, and when an outgoing edge
  /// gets free space.
  virtual Result<bool> work() { return false; }
  /// The run ends: start nothing new, cancel what is in flight. idle() then reports when it is
  /// done.
  virtual Status drain() { return ok(); }
  /// False while the actor waits for answers that it must not lose. Asked only during a drain.
  virtual bool idle() const { return true; }
  virtual Status on_peer(const PeerEvent& event) {
    (void)event;
    return ok();
  }
  /// The tenant of `slot` joins, starts, pauses, continues or leaves. Called for the actors of the
  /// slot and for actors that all tenants share. At kJoin the actors of the slot have started, and
  /// services() knows the tenant; they make no work call before kStart. A source gives no task from
  /// kPause to kResume; a tenant that will leave is paused first. An actor that is made again is
  /// told again, after start(): a repeated call must change nothing, and what follows from these
  /// calls alone needs no field in its state. At kLeave a shared actor forgets what it keeps of the
  /// slot; the actors of the slot are destroyed after the call. May set timers; must not send.
  virtual Status on_tenant(TenantSlot slot, TenantChange::Kind kind) {
    (void)slot;
    (void)kind;
    return ok();
  }

  /// Called once by the actor group, before start().
  void attach(Services* services) { services_ = services; }

 protected:
  Services& services() const {
    CHECK(services_ != nullptr, "services() was used before start()");
    return *services_;
  }

 private:
  Services* services_ = nullptr;
};

}  // namespace primerl
