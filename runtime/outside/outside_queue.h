/// OutsideQueue: the part of an Outside with an I/O thread that the group's thread sees. Orders go
/// to the thread, answers come back.
///
/// A subclass starts its thread with start() at the end of its constructor, and calls end() at the
/// beginning of its destructor.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "graph/base/descriptor.h"
#include "graph/outside.h"

namespace primerl {

class OutsideQueue : public Outside {
 public:
  OutsideQueue();

  Status ask(OutsideCall call) final;
  void forget(uint32_t pool, uint64_t session) final;
  std::vector<OutsideAnswer> receive_answers() final;
  void stop() final;
  void set_wake(std::function<void()> wake) final;
  bool has_work() const final { return !is_stopped_ && has_work_; }
  /// The group fails if the outside cannot be used.
  Status step() final;
  std::string describe() const final;

 protected:
  struct Order {
    OutsideCall call;
    bool is_end = false;  // the session has ended
  };

  void start(std::function<void()> run);
  /// Ends the thread, which must return from run() soon after is_ending().
  void end();

  // On the I/O thread.
  bool is_ending() const { return is_ending_; }
  int event() const { return event_.get(); }  // readable: there are orders, or the end
  /// All orders since the last call, oldest first. Reads the event.
  std::vector<Order> receive_orders();
  void add_answer(OutsideAnswer answer);
  /// The first one counts.
  void fail(Error why);
  /// Shown in reports of stalls after the number of calls.
  void set_state(std::string text);

 private:
  void notify() const;

  const Descriptor event_;
  std::atomic<bool> is_ending_{false};
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> has_work_{false};
  // Used by the group's thread.
  std::set<uint64_t> open_;  // calls whose answer was not received
  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::vector<Order> orders_;
  std::deque<OutsideAnswer> answers_;
  std::function<void()> wake_;
  Status fault_;
  std::string state_;
  std::thread thread_;
};

}  // namespace primerl
