/// EngineHolds: who holds an engine still, and until when. The engine runs when nobody does.
///
/// A book of owners with leases; it has no clock and does nothing by itself: whoever keeps it says
/// what time it is and asks when the next lease ends. Plain value, state of one actor. Threads:
/// that actor's.
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
  /// A longer one is renewed, by an owner that still lives.
  static constexpr Duration kLeaseMax = Duration::seconds(3600);

  /// `owner` holds it until `now` + `lease`, however long its last lease was. kInvalid: a name that
  /// is empty or longer than kOwnerBytesMax, a lease that is not above 0 or above kLeaseMax.
  /// kExhausted: a new owner beside kOwnersMax others. The book is then as before.
  Status hold(const std::string& owner, Duration lease, Time now);
  /// Whether `owner` held it: its lease may have ended before.
  bool let_go(const std::string& owner) { return ends_.erase(owner) > 0; }
  /// Takes out the owners whose lease has ended by `now`, and names them in order.
  std::vector<std::string> expire(Time now);
  void clear() { ends_.clear(); }

  bool is_held() const { return !ends_.empty(); }
  std::optional<Time> next_end() const;
  /// With the rest of their leases, in order.
  std::vector<EngineHolder> holders(Time now) const;
  /// "operator, sync".
  std::string owners() const;

  template <class F>
  static void fields(F& f) {
    f("ends", &EngineHolds::ends_);
  }

 private:
  std::map<std::string, Time> ends_;  // by owner; at most kOwnersMax
};

}  // namespace primerl
