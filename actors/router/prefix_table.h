/// PrefixTable: the prompt prefixes that one engine was sent most recently, which may still be in
/// its cache. The policy `cache_aware` uses it.
///
/// Prompts are compared by names of blocks of kRouteBlockTokens tokens. The names are chained, as
/// in an engine (kernels/engine/block_hash.h): a name stands for all tokens up to the block's end,
/// the tenant and the salt, so equal names mean equal prefixes. The block size is the router's own.
/// Smaller blocks find shorter common prefixes and cost more to name; naming 32 tokens takes about
/// 0.2 us. Only 64 bits of a name are kept. A hash collision sends one request to the wrong engine.
/// Not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "actors/common/recent_table.h"
#include "kernels/engine/block_hash.h"

namespace primerl {

inline constexpr int32_t kRouteBlockTokens = 32;
/// Most blocks of a prompt that are named: its first 32,768 tokens. A longer common prefix would
/// not change the choice.
inline constexpr size_t kRouteBlocksMax = 1024;

/// Makes the block names of prompts.
class RouteBlockNamer {
 public:
  RouteBlockNamer() : hasher_("primerl-graph/route", "", kRouteBlockTokens) {}
  /// The names of all full blocks, at most kRouteBlocksMax.
  std::vector<uint64_t> names_of(std::span<const int32_t> tokens, const BlockScope& scope);

 private:
  BlockHasher hasher_;
};

class PrefixTable {
 public:
  /// How many of the leading blocks were sent to this engine.
  size_t num_known(std::span<const uint64_t> names) const;
  /// Adds blocks that were sent now. Above `blocks_max` in all, the blocks that were sent longest
  /// ago are forgotten; for one prompt, its last blocks first.
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
    size_t operator()(uint64_t name) const { return name; }  // the name is a hash already
  };
  RecentTable<uint64_t, Sent, Hash> blocks_;
};

}  // namespace primerl
