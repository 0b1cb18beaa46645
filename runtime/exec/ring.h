/// Ring: a queue that keeps its memory. Elements have absolute positions that never repeat, so a
/// waiting element can be found again and overwritten. Not thread-safe.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph/base/assert.h"

namespace primerl {

template <class T>
class Ring {
 public:
  bool empty() const { return head_ == tail_; }
  uint64_t size() const { return tail_ - head_; }

  /// Returns the element's position.
  uint64_t push(T&& value) {
    next() = std::move(value);
    return tail_ - 1;
  }
  uint64_t push(const T& value) {
    next() = value;
    return tail_ - 1;
  }
  /// Appends an element and returns it; the caller fills it in place. It still has the contents of
  /// an earlier element. Valid until the next push.
  T& next() {
    if (size() == slots_.size()) grow();
    return slots_[tail_++ & (slots_.size() - 1)];
  }
  T& front() { return slots_[head_ & (slots_.size() - 1)]; }
  const T& front() const { return slots_[head_ & (slots_.size() - 1)]; }
  /// Valid until the next push.
  T&& pop() {
    CHECK(!empty(), "an empty ring was popped");
    return std::move(slots_[head_++ & (slots_.size() - 1)]);
  }
  bool holds(uint64_t position) const { return position >= head_ && position < tail_; }
  T& at(uint64_t position) { return slots_[position & (slots_.size() - 1)]; }
  const T& at(uint64_t position) const { return slots_[position & (slots_.size() - 1)]; }
  /// Removes an element from the middle; the elements after it move up by one position.
  T remove(uint64_t position) {
    CHECK(holds(position), "a ring has no such element");
    T taken = std::move(at(position));
    for (uint64_t i = position + 1; i != tail_; ++i) at(i - 1) = std::move(at(i));
    --tail_;
    return taken;
  }
  uint64_t head() const { return head_; }
  uint64_t tail() const { return tail_; }
  void clear() {
    while (!empty()) pop() = T();
  }

 private:
  void grow() {
    std::vector<T> wider(slots_.empty() ? 8 : slots_.size() * 2);
    for (uint64_t i = head_; i != tail_; ++i)
      wider[i & (wider.size() - 1)] = std::move(slots_[i & (slots_.size() - 1)]);
    slots_ = std::move(wider);
  }
  std::vector<T> slots_;  // a power of two
  uint64_t head_ = 0;
  uint64_t tail_ = 0;
};

}  // namespace primerl
