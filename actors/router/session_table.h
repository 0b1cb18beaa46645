/// SessionTable: which engine has the prefix of a session, for the most recently used sessions.
#pragma once

#include <cstdint>

#include "actors/common/recent_table.h"
#include "actors/router/held_requests.h"
#include "graph/base/ids.h"
#include "graph/base/random.h"

namespace primerl {

/// The engine that has a session's prefix.
struct SessionPlace {
  InstanceId engine;
  uint64_t incarnation = 0;  // of that engine: a restarted one has no prefix
  uint32_t attempt = 0;      // attempt of the rollout when the request was sent there
  template <class F>
  static void fields(F& f) {
    f("engine", &SessionPlace::engine)("incarnation", &SessionPlace::incarnation)(
        "attempt", &SessionPlace::attempt);
  }
};

struct SessionNameHash {
  size_t operator()(const SessionName& name) const {
    return mix(name.tenant.value, name.session) + name.adapter.value;
  }
};

using SessionTable = RecentTable<SessionName, SessionPlace, SessionNameHash>;

}  // namespace primerl
