#include "runtime/outside/outside_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <utility>

namespace primerl {

OutsideQueue::OutsideQueue() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(event_.get() >= 0, "no eventfd");
}

Status OutsideQueue::ask(OutsideCall call) {
  if (is_stopped_) return ok();
  if (open_.size() >= kOutsideCallsMax)
    return error(Code::kExhausted, "{} calls wait for an answer from outside already",
                 open_.size());
  open_.insert(call.id);
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back({std::move(call), false});
  }
  notify();
  return ok();
}

void OutsideQueue::forget(uint32_t pool, uint64_t session) {
  if (is_stopped_) return;
  OutsideCall call;
  call.pool = pool;
  call.session = session;
  {
    const std::lock_guard lock(mutex_);
    orders_.push_back({std::move(call), true});
  }
  notify();
}

std::vector<OutsideAnswer> OutsideQueue::receive_answers() {
  std::vector<OutsideAnswer> received;
  const std::lock_guard lock(mutex_);
  while (!answers_.empty() && received.size() < kOutsideAnswersMax) {
    open_.erase(answers_.front().id);
    received.push_back(std::move(answers_.front()));
    answers_.pop_front();
  }
  has_work_ = !answers_.empty() || !fault_.ok();
  return received;
}

void OutsideQueue::stop() {
  is_stopped_ = true;
  open_.clear();
  const std::lock_guard lock(mutex_);
  answers_.clear();
  has_work_ = false;
}

void OutsideQueue::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

Status OutsideQueue::step() {
  const std::lock_guard lock(mutex_);
  return fault_;
}

std::string OutsideQueue::describe() const {
  const std::lock_guard lock(mutex_);
  return fmt::format("{} calls outside without an answer{}{}", open_.size(),
                     state_.empty() ? "" : "; ", state_);
}

void OutsideQueue::start(std::function<void()> run) {
  thread_ = std::thread([run = std::move(run)] {
    // A process outside that has closed its input must not end this process.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    run();
  });
}

void OutsideQueue::end() {
  is_ending_ = true;
  notify();
  thread_.join();
}

void OutsideQueue::notify() const {
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
}

std::vector<OutsideQueue::Order> OutsideQueue::receive_orders() {
  uint64_t count = 0;
  [[maybe_unused]] const auto size = ::read(event_.get(), &count, sizeof count);
  std::vector<Order> orders;
  const std::lock_guard lock(mutex_);
  orders.swap(orders_);
  return orders;
}

void OutsideQueue::add_answer(OutsideAnswer answer) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    if (answers_.empty()) wake = wake_;
    answers_.push_back(std::move(answer));
    has_work_ = true;
  }
  if (wake) wake();
}

void OutsideQueue::fail(Error why) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (!fault_.ok() || is_stopped_) return;
    fault_ = std::move(why);
    has_work_ = true;
    wake = wake_;
  }
  if (wake) wake();
}

void OutsideQueue::set_state(std::string text) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(text);
}

}  // namespace primerl
