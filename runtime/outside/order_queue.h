/// OrderQueue: what an actor group gives to the I/O thread of an Outside, with a descriptor that is
/// readable while the thread has something to read.
///
/// Threads: add() and notify() on any thread; descriptor() and receive() on the I/O thread.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "graph/base/descriptor.h"
#include "graph/base/result.h"

namespace primerl {

template <class Order>
class OrderQueue {
 public:
  OrderQueue() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CHECK(event_.get() >= 0, "no eventfd");
  }

  int descriptor() const { return event_.get(); }
  void add(Order order) {
    bool is_first = false;
    {
      const std::lock_guard lock(mutex_);
      is_first = orders_.empty();
      orders_.push_back(std::move(order));
    }
    // receive() takes all orders at once, after it has read the event of the first.
    if (is_first) notify();
  }
  /// Makes the descriptor readable without an order: the thread looks at its flags.
  void notify() const {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }
  /// All orders, oldest first. The descriptor is not readable until the next add() or notify().
  std::vector<Order> receive() {
    uint64_t count = 0;
    [[maybe_unused]] const auto size = ::read(event_.get(), &count, sizeof count);
    const std::lock_guard lock(mutex_);
    return std::exchange(orders_, {});
  }

 private:
  const Descriptor event_;
  // Guarded by mutex_.
  std::mutex mutex_;
  std::vector<Order> orders_;
};

}  // namespace primerl
