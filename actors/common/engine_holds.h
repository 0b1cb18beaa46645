/// EngineHolds: the owners that keep an engine paused, and until when. The engine runs when there
/// are none.
///
/// A table of owners with leases. It has no clock and no timer: the caller passes the time and asks
/// when the next lease ends. Plain value, state of one actor. Threads: that actor's.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/result.h"
#include "kernels/engine/engine.h"

namespace primerl {

class EngineHolds {
 public:
  static constexpr size_t kOwnersMax = 16;
  static constexpr size_t kOwnerBytesMax = 64;
  /// Longest lease. An owner that needs more time renews it.
  static constexpr Duration kLeaseMax = Duration::seconds(3600);

  /// Pauses the engine for `owner` until `now` + `lease`; this replaces its last lease. kInvalid:
  /// the name is empty or longer than kOwnerBytesMax, or the lease is not above 0 or is above
  /// kLeaseMax. kExhausted: a new owner while there are kOwnersMax already. After an error the
  /// table is unchanged.
  Status hold(const std::string& owner, Duration lease, Time now);
  /// Removes `owner`. False if it had no lease, or its lease had ended.
  bool let_go(const std::string& owner) { return ends_.erase(owner) > 0; }
  /// Removes the owners whose lease has ended by `now`, and returns their names in order.
  std::vector<std::string> expire(Time now);
  void clear() { ends_.clear(); }

  bool is_held() const { return !ends_.empty(); }
  std::optional<Time> next_end() const;
  /// All owners, in order of name, with the time that is left of their leases.
  std::vector<EngineHolder> holders(Time now) const;
  /// The names of the owners, for example "operator, sync".
  std::string owners() const;

  template <class F>
  static void fields(F& f) {
    f("ends", &EngineHolds::ends_);
  }

 private:
  std::map<std::string, Time> ends_;  // by owner; at most kOwnersMax
};

}  // namespace primerl
