/// The order of the requests of Tinker clients, and which of them are repeats.
///
/// A client sends requests in parallel and again after an error, so they come in any order. A lane
/// is one model: its requests run by their number, from 1. Requests of a lane without order, such
/// as the samples of a sampler, run as they come. In both, a number that came before is a repeat if
/// its body has the same hash, and refused if not. Programs that share a sampler number their
/// samples from far apart.
///
/// A state machine: no clock, no thread. Its state is plain values with fields().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "actors/tinker/tenant_limit.h"
#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl::tinker {

struct OrderLimits {
  size_t waiting_max = 256;                        // of a lane, ahead of their turn
  uint64_t waiting_bytes_max = uint64_t{1} << 28;  // of all lanes: their bodies; tenant_limit.h
  size_t seen_max = 4096;                          // numbers of a lane that are remembered
  Duration wait_max = Duration::seconds(60);
};

struct OfferedRequest {
  std::string lane;
  int64_t seq = 0;
  std::string digest;      // hexadecimal SHA-256 of the body
  uint64_t num_bytes = 0;  // of the body
  uint64_t request = 0;    // the number that it gets if it is new
  TenantSlot tenant{0};    // of the lane
  size_t num_tenants = 1;  // that share the limit of bytes
  // Its number may run again once it is forgotten. Else one below a forgotten number is refused.
  bool may_run_again = false;
};

/// What becomes of an offered request.
struct Admission {
  enum class Kind : uint8_t { kRun, kWait, kRepeat } kind = Kind::kRun;
  uint64_t request = 0;  // of a repeat: that of the first
};

class RequestOrder {
 public:
  explicit RequestOrder(OrderLimits limits = {})
      : limits_(limits), waiting_bytes_(limits.waiting_bytes_max) {}

  /// In order. After kRun, pop_ready() has the requests that waited for it. kExists: the number
  /// has another body. kCancelled: its digest is no longer kept. kExhausted: too many wait.
  Result<Admission> offer(const OfferedRequest& offered, Time now);
  /// Without order: never kWait. The number that came first is forgotten first.
  Result<Admission> offer_unordered(const OfferedRequest& offered);

  /// A repeat runs again, because the answer of its first is gone: its number means `request` now.
  void renew(const std::string& lane, int64_t seq, uint64_t request);

  /// Requests of the lane whose turn has come, in order. Each is returned once.
  std::vector<uint64_t> pop_ready(const std::string& lane);
  /// Requests that waited too long, each with the number that did not come. They are forgotten, so
  /// the client may send them again.
  std::vector<std::pair<uint64_t, int64_t>> expire(Time now);
  /// When expire() has the next one; Time of INT64_MAX ns: none waits.
  Time next_expiry() const;
  /// The lane has ended. Returns its waiting requests.
  std::vector<uint64_t> drop(const std::string& lane);

  size_t num_waiting(const std::string& lane) const;
  uint64_t waiting_bytes() const { return waiting_bytes_.used(); }

  template <class F>
  static void fields(F& f) {
    f("lanes", &RequestOrder::lanes_)("waiting_bytes", &RequestOrder::waiting_bytes_);
  }

 private:
  struct Seen {
    std::string digest;
    uint64_t request = 0;

    template <class F>
    static void fields(F& f) {
      f("digest", &Seen::digest)("request", &Seen::request);
    }
  };
  struct Waiting {
    Seen seen;
    uint64_t num_bytes = 0;
    Time since;

    template <class F>
    static void fields(F& f) {
      f("seen", &Waiting::seen)("num_bytes", &Waiting::num_bytes)("since", &Waiting::since);
    }
  };
  struct Lane {
    TenantSlot tenant;
    int64_t next = 1;                    // the number whose turn it is
    int64_t forgotten = -1;              // seen numbers up to this one were dropped
    std::map<int64_t, Seen> seen;        // by number
    std::map<int64_t, Waiting> waiting;  // by number, all above `next`

    template <class F>
    static void fields(F& f) {
      f("tenant", &Lane::tenant)("next", &Lane::next)("forgotten", &Lane::forgotten)(
          "seen", &Lane::seen)("waiting", &Lane::waiting);
    }
  };

  Lane& lane_of(const OfferedRequest& offered);
  Result<Admission> repeat_of(const Seen& first, const OfferedRequest& offered) const;
  Result<Admission> wait(Lane& lane, const OfferedRequest& offered, Time now);
  void remember(Lane& lane, int64_t seq, Seen seen);
  void forget_oldest(Lane& lane);
  void stop_waiting(Lane& lane, std::map<int64_t, Waiting>::iterator entry);

  OrderLimits limits_;
  std::map<std::string, Lane> lanes_;
  TenantLimit waiting_bytes_;
};

}  // namespace primerl::tinker
