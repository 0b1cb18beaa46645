#include "actors/router/prefix_table.h"

#include <algorithm>

namespace primerl {
namespace {

// Names whose slots are prefetched while one name is looked up.
constexpr size_t kLookAhead = 8;

}  // namespace

std::vector<uint64_t> RouteBlockNamer::names_of(std::span<const int32_t> tokens,
                                                const BlockScope& scope) {
  const size_t count = std::min(tokens.size() / kRouteBlockTokens, kRouteBlocksMax);
  std::vector<uint64_t> names;
  names.reserve(count);
  BlockChain chain = hasher_.begin();
  for (size_t i = 0; i < count; ++i) {
    chain = hasher_.next(chain, tokens.subspan(i * kRouteBlockTokens, kRouteBlockTokens), scope);
    names.push_back(chain.name().low);
  }
  return names;
}

size_t PrefixTable::num_known(std::span<const uint64_t> names) const {
  for (size_t i = 0; i < std::min(names.size(), kLookAhead); ++i) blocks_.expect(names[i]);
  size_t count = 0;
  while (count < names.size() && blocks_.find(names[count]) != nullptr) {
    if (count + kLookAhead < names.size()) blocks_.expect(names[count + kLookAhead]);
    ++count;
  }
  return count;
}

void PrefixTable::add(std::span<const uint64_t> names, size_t blocks_max) {
  // A block counts only together with all blocks before it, so the first blocks must be forgotten
  // last.
  const size_t count = std::min(names.size(), blocks_max);
  blocks_.expect_all(names.first(count), blocks_max);
  for (size_t i = count; i-- > 0;) blocks_.put(names[i], {}, blocks_max);
}

}  // namespace primerl
