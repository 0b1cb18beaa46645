#include "runtime/control/stop_signals.h"

#include <ctime>
#include <iterator>

namespace primerl {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may take no lock");

StopRequests requests;

void take_signal(int number) {
  timespec now{};
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  requests.take(number, int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec + 1);
}

}  // namespace

void StopRequests::take(int signal, int64_t now_ns) {
  int none = 0;
  first_.compare_exchange_strong(none, signal);
  if (signal == SIGINT) {
    count_.fetch_add(1);
    return;
  }
  int64_t before = asked_at_ns_;
  if (before != 0 && now_ns - before < kTermGrace.to_nanoseconds()) return;
  // Another thread's signal counts.
  if (!asked_at_ns_.compare_exchange_strong(before, now_ns)) return;
  none = 0;
  // After Ctrl-C the run is draining already.
  if (before != 0)
    count_.fetch_add(1);
  else
    count_.compare_exchange_strong(none, 1);
}

void StopRequests::clear() {
  count_ = 0;
  first_ = 0;
  asked_at_ns_ = 0;
}

SignalCounter::SignalCounter() {
  requests.clear();
  struct sigaction action {};
  action.sa_handler = take_signal;
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &action, &before_[i]);
}

SignalCounter::~SignalCounter() {
  for (size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
}

int SignalCounter::count() { return requests.count(); }
int SignalCounter::first() { return requests.first(); }

}  // namespace primerl
