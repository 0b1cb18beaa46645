/// Actor: a plain class with state and handlers that handles one message at a time.
///
/// What the runtime promises: the constructor gets bound options; then the group wires services and
/// outputs and calls start() once; after that handlers, timers, work() and on_peer() run one at a
/// time, never two at once, always on the same actor group. An error returned by a handler stops
/// that message only. drain() is called once when the run ends early or late; afterwards the actor
/// starts nothing new but still handles what arrives. Actors start no thread, hold no lock, read no
/// clock.
#pragma once

#include <string>
#include <string_view>
#include <typeinfo>

#include "graph/base/resource.h"
#include "graph/base/services.h"

namespace primerl {

/// The resources a contract declared with `.uses<R>(name, ...)`, by that name.
class Resources {
 public:
  virtual ~Resources() = default;
  template <class R>
  R& get(std::string_view use) {
    auto* found = dynamic_cast<R*>(find(use));
    CHECK(found != nullptr, "a resource was asked for that the contract does not use");
    return *found;
  }

 protected:
  virtual Resource* find(std::string_view use) = 0;
};

/// A neighbour's process died or came back.
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

  /// Receives resources; may set timers; may not send.
  virtual Status start(Resources& resources) {
    (void)resources;
    return ok();
  }
  /// One bounded unit of own work; true = there is more. Only called when the contract says
  /// works(). Re-armed by every handler of the actor group and when an outgoing edge gets room.
  virtual Result<bool> work() { return false; }
  /// The run ends: start nothing new, cancel what is in flight. idle() tells when that is done.
  virtual Status drain() { return ok(); }
  /// False while the actor still waits for answers it must not lose (asked only while draining).
  virtual bool idle() const { return true; }
  virtual Status on_peer(const PeerEvent& event) {
    (void)event;
    return ok();
  }

  /// Called by the group, once, before start().
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
