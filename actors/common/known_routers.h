/// The routers to which an actor sends requests, and which of them are down. A request to a router
/// that is down is lost, and so is its cancel: no answer comes. So an actor sends no request from
/// the report of a death of a router to that of its return, nor while there is no live router.
#pragma once

#include <algorithm>
#include <map>
#include <span>

#include "graph/actor.h"

namespace primerl {

using KnownRouters = std::map<InstanceId, bool>;  // true: it is down

inline void add_routers(KnownRouters& routers, std::span<const InstanceId> targets) {
  for (const InstanceId router : targets) routers.try_emplace(router, false);
}

/// Whether a request reaches a router; `targets` are the live ones. Before the first request no
/// router is known, and its death was not noted.
inline bool can_reach_router(const KnownRouters& routers, std::span<const InstanceId> targets) {
  if (targets.empty()) return false;
  return routers.empty() ||
         std::ranges::any_of(routers, [](const auto& router) { return !router.second; });
}

/// False: the peer is no known router.
inline bool note_router(KnownRouters& routers, const PeerEvent& event) {
  const auto found = routers.find(event.instance);
  if (found == routers.end()) return false;
  found->second = event.kind == PeerEvent::Kind::kDown;
  return true;
}

}  // namespace primerl
