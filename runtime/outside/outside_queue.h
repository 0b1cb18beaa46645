/// OutsideQueue: the part of an Outside with an I/O thread that the group's thread sees. Orders go
/// to the thread, answers come back.
///
/// A subclass starts its thread with start() at the end of its constructor, and calls end() at the
/// beginning of its destructor.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "graph/outside.h"
#include "runtime/outside/answer_queue.h"
#include "runtime/outside/order_queue.h"

namespace primerl {

class OutsideQueue : public Outside {
 public:
  Status ask(OutsideCall call) final;
  void forget(uint32_t pool, uint64_t session) final;
  std::vector<OutsideAnswer> receive_answers() final { return answers_.receive(); }
  void stop() final { answers_.stop(); }
  void set_wake(std::function<void()> wake) final { answers_.set_wake(std::move(wake)); }
  bool has_work() const final { return answers_.has_work(); }
  /// The group fails if the outside cannot be used.
  Status step() final { return answers_.fault(); }
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
  int event() const { return orders_.descriptor(); }  // readable: there are orders, or the end
  /// All orders since the last call, oldest first. Reads the event.
  std::vector<Order> receive_orders() { return orders_.receive(); }
  void add_answer(OutsideAnswer answer) { answers_.add(std::move(answer)); }
  /// The first one counts.
  void fail(Error why) { answers_.fail(std::move(why)); }
  /// Shown in reports of stalls after the number of calls.
  void set_state(std::string text);

 private:
  AnswerQueue answers_;
  OrderQueue<Order> orders_;
  std::atomic<bool> is_ending_{false};
  // Guarded by state_mutex_.
  mutable std::mutex state_mutex_;
  std::string state_;
  std::thread thread_;
};

}  // namespace primerl
