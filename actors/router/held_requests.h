/// HeldRequests: what waits at the router until an engine can take it.
///
/// A request waits in the lane of what it waits for, behind those that came before it: any engine
/// with its tenant's policy version, or the one engine that alone may take it. Lanes do not block
/// each other and tenants go in turn; requests of one session keep their order. Not thread-safe.
#pragma once

#include <compare>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "actors/common/request_name.h"
#include "actors/messages/generation.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

struct HeldRequest {
  GenerateRequest request;
  TenantSlot tenant;
  StepRef cause;
  InstanceId origin;

  RequestName name() const { return {tenant, request.request}; }
  WeightsKey key() const { return {tenant}; }
  SessionName session() const { return {tenant, request.session}; }

  template <class F>
  static void fields(F& f) {
    using H = HeldRequest;
    f("request", &H::request)("tenant", &H::tenant)("cause", &H::cause)("origin", &H::origin);
  }
};

/// What a request waits for.
struct HeldLane {
  PolicyVersion version;  // the engine must have applied it
  InstanceId home;        // the engine that alone may take it; none = any
  friend constexpr auto operator<=>(const HeldLane&, const HeldLane&) = default;
  template <class F>
  static void fields(F& f) {
    f("version", &HeldLane::version)("home", &HeldLane::home);
  }
};

class HeldRequests {
 public:
  bool is_empty() const { return names_.empty(); }
  size_t size() const { return names_.size(); }

  /// Behind all of its lane. A later request of a session that waits joins that one's lane.
  void add(HeldRequest held, HeldLane lane);
  /// Takes one out, wherever it waits.
  std::optional<HeldRequest> take(RequestName name);
  /// Offers heads of lanes, tenants in turn and a tenant's oldest first, until `most` were taken or
  /// every lane was refused once. True when a lane that was not refused is left.
  bool offer(int64_t most, const std::function<bool(const HeldRequest&)>& go);
  /// Everything waits for something else now: `lane_of` says for what. Keeps the order.
  void assign(const std::function<HeldLane(const HeldRequest&)>& lane_of);

  template <class F>
  static void fields(F& f) {
    using H = HeldRequests;
    f("lanes", &H::lanes_)("names", &H::names_)("sessions", &H::sessions_)(
        "served_last", &H::served_last_)("arrivals", &H::arrivals_)("offers", &H::offers_);
  }

 private:
  struct Waiting {
    HeldRequest held;
    uint64_t arrival = 0;
    template <class F>
    static void fields(F& f) {
      f("held", &Waiting::held)("arrival", &Waiting::arrival);
    }
  };
  struct Lane {
    std::deque<Waiting> waiting;  // never empty
    uint64_t refused_in = 0;      // the offer() that found no engine
    template <class F>
    static void fields(F& f) {
      f("waiting", &Lane::waiting)("refused_in", &Lane::refused_in);
    }
  };
  using Lanes = std::map<HeldLane, Lane>;
  struct SessionHere {
    HeldLane lane;
    int64_t count = 0;
    template <class F>
    static void fields(F& f) {
      f("lane", &SessionHere::lane)("count", &SessionHere::count);
    }
  };

  void add(Waiting waiting, HeldLane lane);
  Waiting take_from(TenantSlot tenant, Lanes::iterator lane, std::deque<Waiting>::iterator which);
  Lanes::iterator oldest_open(Lanes& lanes) const;

  std::map<TenantSlot, Lanes> lanes_;  // no tenant without a lane
  std::map<RequestName, HeldLane> names_;
  std::map<SessionName, SessionHere> sessions_;
  TenantSlot served_last_;
  uint64_t arrivals_ = 0;
  uint64_t offers_ = 0;
};

}  // namespace primerl
