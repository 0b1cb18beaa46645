/// RequestRate: how many requests each holder of a token may make within a minute. A bucket of
/// kRequestsPerMinute requests that fills again evenly. Not thread-safe; reads no clock.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>

#include "graph/base/clock.h"

namespace primerl {

class RequestRate {
 public:
  static constexpr double kRequestsPerMinute = 120;
  static constexpr size_t kHoldersMax = 4096;

  /// 0: the request may pass. Otherwise the seconds after which one may.
  int32_t take(const std::string& holder, Time now) {
    if (!buckets_.contains(holder) && buckets_.size() >= kHoldersMax) remove_full(now);
    Bucket& bucket = buckets_.try_emplace(holder, Bucket{kRequestsPerMinute, now}).first->second;
    refill(bucket, now);
    if (bucket.left >= 1) {
      bucket.left -= 1;
      bucket.num_refused = 0;
      return 0;
    }
    ++bucket.num_refused;
    return static_cast<int32_t>(std::ceil((1 - bucket.left) / kPerSecond));
  }
  /// Whether the last request was refused, and the one before too.
  bool refuses_again(const std::string& holder) const {
    const auto found = buckets_.find(holder);
    return found != buckets_.end() && found->second.num_refused > 1;
  }
  size_t num_holders() const { return buckets_.size(); }

 private:
  static constexpr double kPerSecond = kRequestsPerMinute / 60;
  struct Bucket {
    double left = 0;
    Time at;
    uint64_t num_refused = 0;  // since the last one that passed
  };

  static void refill(Bucket& bucket, Time now) {
    const double seconds = static_cast<double>((now - bucket.at).to_nanoseconds()) / 1e9;
    bucket.left = std::min(kRequestsPerMinute, bucket.left + seconds * kPerSecond);
    bucket.at = now;
  }
  /// A full bucket is as none.
  void remove_full(Time now) {
    for (auto& [holder, bucket] : buckets_) refill(bucket, now);
    std::erase_if(buckets_,
                  [](const auto& each) { return each.second.left >= kRequestsPerMinute; });
  }

  std::map<std::string, Bucket> buckets_;
};

}  // namespace primerl
