#include "kernels/text/merges.h"

#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>

namespace primerl {
namespace {

constexpr int32_t kGone = -1;  // a symbol that was merged into its left neighbour
constexpr int32_t kNobody = -1;

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

void Merges::add(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  rules_.insert_or_assign(key_of(left, right), Rule{rank, merged});
}

const Merges::Rule* Merges::find(int32_t left, int32_t right) const {
  const auto found = rules_.find(key_of(left, right));
  return found == rules_.end() ? nullptr : &found->second;
}

void Merges::apply(std::vector<int32_t>& ids) const {
  if (ids.size() < 2) return;
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
