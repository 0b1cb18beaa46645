#include "actors/router/circuit_breaker.h"

#include <utility>

namespace primerl {
namespace {

uint64_t more_than(uint64_t& told, uint64_t total) {
  const uint64_t before = std::exchange(told, total);
  return total < before ? total : total - before;
}

}  // namespace

CircuitBreaker::State CircuitBreaker::state(Time now) const {
  if (!half_opens_at_) return State::kClosed;
  return now < *half_opens_at_ ? State::kOpen : State::kHalfOpen;
}

CircuitBreaker::Change CircuitBreaker::take(uint64_t num_good, uint64_t num_faults, Time now) {
  const uint64_t good = more_than(num_good_, num_good);
  const uint64_t faults = more_than(num_faults_, num_faults);
  switch (state(now)) {
    case State::kClosed:
      return take_closed(good, faults, now);
    case State::kHalfOpen:
      return take_half_open(good, faults, now);
    case State::kOpen:
      break;
  }
  return Change::kNone;
}

CircuitBreaker::Change CircuitBreaker::take_closed(uint64_t good, uint64_t faults, Time now) {
  if (good > 0) {
    faults_.clear();
    return Change::kNone;
  }
  std::erase_if(faults_, [now](Time at) { return now - at >= kWindow; });
  const uint64_t wanted = kFaultsToOpen - faults_.size();
  if (faults >= wanted) return open(now);
  faults_.insert(faults_.end(), faults, now);
  return Change::kNone;
}

CircuitBreaker::Change CircuitBreaker::take_half_open(uint64_t good, uint64_t faults, Time now) {
  if (faults > 0) return open(now);
  num_good_in_a_row_ += good;
  if (num_good_in_a_row_ < kGoodEndsToClose) return Change::kNone;
  half_opens_at_.reset();
  return Change::kClosed;
}

CircuitBreaker::Change CircuitBreaker::open(Time now) {
  faults_.clear();
  num_good_in_a_row_ = 0;
  half_opens_at_ = now + kOpenFor;
  return Change::kOpened;
}

}  // namespace primerl
