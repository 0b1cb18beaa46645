#include "runtime/outside/outside_queue.h"

#include <csignal>
#include <utility>

namespace primerl {

Status OutsideQueue::ask(OutsideCall call) {
  if (answers_.is_stopped()) return ok();
  RETURN_IF_ERROR(answers_.open(call.id));
  orders_.add({std::move(call), false});
  return ok();
}

void OutsideQueue::forget(uint32_t pool, uint64_t session) {
  if (answers_.is_stopped()) return;
  OutsideCall call;
  call.pool = pool;
  call.session = session;
  orders_.add({std::move(call), true});
}

std::string OutsideQueue::describe() const {
  const std::lock_guard lock(state_mutex_);
  return fmt::format("{} calls outside without an answer{}{}", answers_.num_open(),
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
  orders_.notify();
  thread_.join();
}

void OutsideQueue::set_state(std::string text) {
  const std::lock_guard lock(state_mutex_);
  state_ = std::move(text);
}

}  // namespace primerl
