/// HeldRequests: requests that wait at the router until an engine can accept them.
///
/// A lane has the requests that wait for the same thing, oldest first: for any engine with the
/// policy version of their weights key, or for one particular engine. Lanes do not block each
/// other, and tenants are served in turn. Requests of one session keep their order. Not
/// thread-safe.
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

namespace primerl {

struct HeldRequest {
  GenerateRequest request;
  TenantSlot tenant;
  StepRef cause;
  InstanceId origin;

  RequestName name() const { return {tenant, request.request}; }
  SessionName session() const { return {tenant, request.session, request.adapter}; }

  template <class F>
  static void fields(F& f) {
    using H = HeldRequest;
    f("request", &H::request)("tenant", &H::tenant)("cause", &H::cause)("origin", &H::origin);
  }
};

/// The engines that a request waits for.
struct HeldLane {
  PolicyVersion version;  // the engine must have applied it
  InstanceId home;        // the only engine that may get the request; none = any engine
  AdapterId adapter{};    // the key of the version, as in GenerateRequest
  friend constexpr auto operator<=>(const HeldLane&, const HeldLane&) = default;
  template <class F>
  static void fields(F& f) {
    f("version", &HeldLane::version)("home", &HeldLane::home)("adapter", &HeldLane::adapter);
  }
};

class HeldRequests {
 public:
  bool is_empty() const { return names_.empty(); }
  size_t size() const { return names_.size(); }

  /// Adds a request at the end of its lane. If its session has a waiting request, it joins that
  /// lane.
  void add(HeldRequest held, HeldLane lane);
  /// Removes a request, in whichever lane it waits.
  std::optional<HeldRequest> take(RequestName name);
  /// Removes all requests of a tenant that `is_wanted` accepts, oldest first.
  std::vector<HeldRequest> take_all(TenantSlot tenant,
                                    const std::function<bool(const HeldRequest&)>& is_wanted);
  /// Calls `go` with the first request of a lane: tenants in turn, and for each tenant the oldest
  /// request. `go` returns whether an engine accepted it. Ends after `most` accepted requests, or
  /// when every lane was refused once. True if a lane is left that was not refused.
  bool offer(int64_t most, const std::function<bool(const HeldRequest&)>& go);
  /// Sorts all requests into lanes again, as `lane_of` says. Keeps their order.
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
    uint64_t refused_in = 0;      // number of the offer() in which no engine accepted its first
                                  // request
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
  Waiting remove_from(TenantSlot tenant, Lanes::iterator lane, std::deque<Waiting>::iterator which);
  Lanes::iterator oldest_open(Lanes& lanes) const;

  std::map<TenantSlot, Lanes> lanes_;  // every tenant here has a lane
  std::map<RequestName, HeldLane> names_;
  std::map<SessionName, SessionHere> sessions_;
  TenantSlot served_last_;
  uint64_t arrivals_ = 0;
  uint64_t offers_ = 0;
};

}  // namespace primerl
