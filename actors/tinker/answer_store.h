/// The futures of Tinker clients: open requests, and their answers until they are fetched.
///
/// An answer stays until the client got it, for at most `keep`, and within `bytes_max`: the oldest
/// of the tenant that has the most makes space for a new one. A missing answer is gone, and its
/// client sends the request again. Tenants share `open_max` as tenant_limit.h says.
///
/// A state machine: no clock, no thread. Its state is plain values with fields().
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "actors/tinker/tenant_limit.h"
#include "graph/base/clock.h"
#include "graph/base/ids.h"
#include "graph/base/result.h"

namespace primerl::tinker {

struct AnswerLimits {
  size_t open_max = 4096;                  // requests without an answer
  size_t answers_max = 65536;              // that are kept
  uint64_t bytes_max = uint64_t{1} << 28;  // of all kept answers
  Duration keep = Duration::seconds(600);
};

struct StoredAnswer {
  std::vector<uint8_t> body;
  bool is_protobuf = false;  // else JSON
  Time since;

  template <class F>
  static void fields(F& f) {
    f("body", &StoredAnswer::body)("is_protobuf", &StoredAnswer::is_protobuf)("since",
                                                                              &StoredAnswer::since);
  }
};

class AnswerStore {
 public:
  explicit AnswerStore(AnswerLimits limits = {}) : limits_(limits), open_(limits.open_max) {}

  /// Whether the tenant may open one more; kExhausted if not. `num_tenants`: with futures or not.
  Status check_open(TenantSlot tenant, size_t num_tenants) const;
  /// A future of the tenant, which check_open() allows.
  void open(uint64_t request, TenantSlot tenant);
  /// Its answer. Nothing happens if the future was dropped. An answer above bytes_max alone is
  /// kExhausted, and the future stays open.
  Status complete(uint64_t request, std::string_view body, bool is_protobuf, Time now);
  /// Null while it is open. kCancelled: it was fetched or is too old. kNotFound: there was none, or
  /// it is another tenant's.
  Result<const StoredAnswer*> find(uint64_t request, TenantSlot tenant) const;
  /// The tenant of a request that find() knows; none: there was none.
  TenantSlot tenant_of(uint64_t request) const;
  /// The client has the answer, or there will be none.
  void forget(uint64_t request);
  /// Drops answers that are too old.
  void expire(Time now);
  /// Drops all of a tenant.
  void drop(TenantSlot tenant);

  /// When expire() has the next one; Time of INT64_MAX ns: none is kept.
  Time next_expiry() const;
  Duration keep() const { return limits_.keep; }
  size_t num_open() const { return open_.used(); }
  uint64_t num_bytes() const { return num_bytes_; }

  template <class F>
  static void fields(F& f) {
    f("futures", &AnswerStore::futures_)("gone", &AnswerStore::gone_)("open", &AnswerStore::open_)(
        "num_bytes", &AnswerStore::num_bytes_);
  }

 private:
  static constexpr size_t kGoneMax = 4096;
  static constexpr uint64_t kAnswerBytes = 256;  // beside the body: many small ones count too

  struct Future {
    TenantSlot tenant;
    bool is_open = true;
    StoredAnswer answer;

    template <class F>
    static void fields(F& f) {
      f("tenant", &Future::tenant)("is_open", &Future::is_open)("answer", &Future::answer);
    }
  };
  using Futures = std::map<uint64_t, Future>;

  Futures::iterator erase(Futures::iterator entry);
  bool drop_oldest(TenantSlot incoming, uint64_t num_bytes);

  AnswerLimits limits_;
  Futures futures_;                      // by request
  std::map<uint64_t, TenantSlot> gone_;  // the newest requests whose answers were dropped
  TenantLimit open_;
  uint64_t num_bytes_ = 0;
};

}  // namespace primerl::tinker
