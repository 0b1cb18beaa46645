/// Counter: a number that one thread changes and any thread may read. It uses relaxed loads and
/// stores and no read-modify-write, so it costs as much as a plain number.
#pragma once

#include <atomic>
#include <cstdint>

namespace primerl {

class Counter {
 public:
  Counter() = default;
  Counter(const Counter& other) : value_(other.get()) {}
  Counter& operator=(const Counter& other) {
    set(other.get());
    return *this;
  }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }
  void set(uint64_t value) { value_.store(value, std::memory_order_relaxed); }
  void add(uint64_t amount) { set(get() + amount); }
  void raise_to(uint64_t value) {
    if (value > get()) set(value);
  }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace primerl
