#include "kernels/text/merges.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>

namespace primerl {
namespace {

constexpr int32_t kGone = -1;  // a symbol that was merged into its left neighbour
constexpr int32_t kNobody = -1;
constexpr size_t kShortMax = 40;  // symbols: beyond, the heap is faster

uint64_t key_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Symbol {
  int32_t id = kGone;
  int32_t previous = kNobody;
  int32_t next = kNobody;
};

/// A merge that was possible when it was added; the leftmost of the lowest rank is on top.
struct Candidate {
  uint32_t rank;
  int32_t at;  // the left symbol
  int32_t merged;
  friend bool operator>(const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.at) > std::tie(b.rank, b.at);
  }
};

}  // namespace

size_t Merges::slot_of(uint64_t pair) const {
  const size_t mask = rules_.size() - 1;
  size_t slot = static_cast<size_t>((pair * 0x9E3779B97F4A7C15ULL) >> 32) & mask;
  while (rules_[slot].pair != kFree && rules_[slot].pair != pair) slot = (slot + 1) & mask;
  return slot;
}

void Merges::grow() {
  std::vector<Rule> old(std::max<size_t>(64, 2 * rules_.size()));
  old.swap(rules_);
  for (const Rule& rule : old)
    if (rule.pair != kFree) rules_[slot_of(rule.pair)] = rule;
}

void Merges::add(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  if (4 * (num_rules_ + 1) > 3 * rules_.size()) grow();
  Rule& rule = rules_[slot_of(key_of(left, right))];
  if (rule.pair == kFree) ++num_rules_;
  rule = {key_of(left, right), rank, merged};
}

const Merges::Rule* Merges::find(int32_t left, int32_t right) const {
  if (rules_.empty()) return nullptr;
  const Rule& rule = rules_[slot_of(key_of(left, right))];
  return rule.pair == kFree ? nullptr : &rule;
}

void Merges::apply(std::vector<int32_t>& ids) const {
  if (ids.size() < 2) return;
  if (ids.size() <= kShortMax)
    apply_short(ids);
  else
    apply_long(ids);
}

void Merges::apply_short(std::vector<int32_t>& ids) const {
  constexpr Rule kNone{0, UINT32_MAX, 0};
  std::array<Rule, kShortMax> pairs;  // of each symbol and the next
  const auto look_up = [&](size_t i) {
    const Rule* rule = find(ids[i], ids[i + 1]);
    pairs[i] = rule == nullptr ? kNone : *rule;
  };
  size_t count = ids.size();
  for (size_t i = 0; i + 1 < count; ++i) look_up(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i)
      if (pairs[i].rank < pairs[best].rank) best = i;
    if (pairs[best].rank == UINT32_MAX) break;
    ids[best] = pairs[best].merged;
    std::copy(ids.begin() + static_cast<int64_t>(best) + 2,
              ids.begin() + static_cast<int64_t>(count),
              ids.begin() + static_cast<int64_t>(best) + 1);
    std::copy(pairs.begin() + best + 1, pairs.begin() + count - 1, pairs.begin() + best);
    --count;
    if (best + 1 < count) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids.resize(count);
}

void Merges::apply_long(std::vector<int32_t>& ids) const {
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Symbol> symbols(ids.size());
  for (int32_t i = 0; i < count; ++i)
    symbols[static_cast<size_t>(i)] = {ids[static_cast<size_t>(i)], i - 1,
                                       i + 1 < count ? i + 1 : kNobody};
  const auto at = [&symbols](int32_t index) -> Symbol& {
    return symbols[static_cast<size_t>(index)];
  };

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
  const auto note = [&](int32_t left) {
    if (left == kNobody || at(left).next == kNobody) return;
    if (const Rule* rule = find(at(left).id, at(at(left).next).id))
      candidates.push({rule->rank, left, rule->merged});
  };
  for (int32_t i = 0; i + 1 < count; ++i) note(i);
  while (!candidates.empty()) {
    const Candidate top = candidates.top();
    candidates.pop();
    Symbol& left = at(top.at);
    if (left.id == kGone || left.next == kNobody) continue;
    Symbol& right = at(left.next);
    const Rule* rule = find(left.id, right.id);
    // an adjacent symbol changed since
    if (rule == nullptr || rule->merged != top.merged) continue;
    left.id = top.merged;
    left.next = right.next;
    right.id = kGone;
    if (left.next != kNobody) at(left.next).previous = top.at;
    note(left.previous);
    note(top.at);
  }
  ids.clear();
  for (int32_t i = 0; i != kNobody; i = at(i).next) ids.push_back(at(i).id);
}

}  // namespace primerl
