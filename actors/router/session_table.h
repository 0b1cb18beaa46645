/// SessionTable: which engine has the prefix of a session, for the sessions that were used last.
///
/// As a cut must copy it within a few milliseconds, all sessions are in one block of memory, linked
/// by age. A value; not thread-safe.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "actors/router/held_requests.h"
#include "graph/base/ids.h"
#include "graph/base/random.h"

namespace primerl {

class SessionTable {
 public:
  /// The engine that has a session's prefix.
  struct Session {
    InstanceId engine;
    uint64_t incarnation = 0;  // of that engine: a restarted one has no prefix
    template <class F>
    static void fields(F& f) {
      f("engine", &Session::engine)("incarnation", &Session::incarnation);
    }
  };

  /// None for a session that is not known, or was forgotten.
  const Session* find(const SessionName& name) const;
  /// The newest session from now on. When there are more than `sessions_max`, the one that was not
  /// used for longest is forgotten.
  void put(const SessionName& name, Session session, size_t sessions_max);
  size_t size() const { return entries_.size(); }

  template <class F>
  static void fields(F& f) {
    f("entries", &SessionTable::entries_)("oldest", &SessionTable::oldest_)("newest",
                                                                            &SessionTable::newest_);
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  struct Entry {
    SessionName name;
    Session session;
    uint32_t older = kNone, newer = kNone;  // index of an entry
    template <class F>
    static void fields(F& f) {
      f("name", &Entry::name)("session", &Entry::session)("older", &Entry::older)("newer",
                                                                                  &Entry::newer);
    }
  };
  struct Hash {
    size_t operator()(const SessionName& name) const {
      return mix(name.tenant.value, name.session);
    }
  };

  void unlink(uint32_t place);
  void link_newest(uint32_t place);
  /// Of a table that was read from a cut.
  void index() const;

  std::vector<Entry> entries_;
  uint32_t oldest_ = kNone, newest_ = kNone;
  // Follows from entries_, so it is not saved; made when it is needed.
  mutable std::unordered_map<SessionName, uint32_t, Hash> places_;
};

}  // namespace primerl
