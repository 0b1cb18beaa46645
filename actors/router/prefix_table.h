/// PrefixTable: the beginnings of prompts that one engine was sent last, which it may still have in
/// its cache. What the policy `cache_aware` goes by.
///
/// Prompts are compared by names of blocks of kRouteBlockTokens tokens, chained as an engine's own
/// (kernels/engine/block_hash.h): a name stands for all tokens up to its end, their tenant and
/// salt, so equal names are equal beginnings. The size is the router's alone: smaller blocks tell
/// shorter beginnings apart and cost more to name; 32 tokens are about 0.2 us. Of a name 64 bits
/// are kept: two that are alike by chance send one request to the wrong engine. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "actors/router/recent_table.h"
#include "kernels/engine/block_hash.h"

namespace primerl {

inline constexpr int32_t kRouteBlockTokens = 32;
/// Blocks of a prompt that are named: the first 32,768 tokens. Who shares those shares enough.
inline constexpr size_t kRouteBlocksMax = 1024;

/// Names the beginnings of prompts.
class RouteBlockNamer {
 public:
  RouteBlockNamer() : hasher_("primerl-graph/route", "", kRouteBlockTokens) {}
  /// Of all full blocks, at most kRouteBlocksMax.
  std::vector<uint64_t> names_of(std::span<const int32_t> tokens, const BlockScope& scope);

 private:
  BlockHasher hasher_;
};

class PrefixTable {
 public:
  /// How many of the leading blocks were sent.
  size_t num_known(std::span<const uint64_t> names) const;
  /// They were sent now. When there are more than `blocks_max` in all, those that were not sent for
  /// longest are forgotten, of one prompt the last blocks first.
  void add(std::span<const uint64_t> names, size_t blocks_max);
  size_t size() const { return blocks_.size(); }

  template <class F>
  static void fields(F& f) {
    f("blocks", &PrefixTable::blocks_);
  }

 private:
  struct Sent {
    template <class F>
    static void fields(F&) {}
  };
  struct Hash {
    size_t operator()(uint64_t name) const { return name; }  // a hash itself
  };
  RecentTable<uint64_t, Sent, Hash> blocks_;
};

}  // namespace primerl
