#include "runtime/outside/answer_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace primerl {

Status AnswerQueue::open(uint64_t call) {
  if (open_.size() >= kOutsideCallsMax)
    return error(Code::kExhausted, "{} calls wait for an answer from outside already",
                 open_.size());
  open_.insert(call);
  return ok();
}

std::vector<OutsideAnswer> AnswerQueue::receive() {
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

Status AnswerQueue::fault() const {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void AnswerQueue::stop() {
  open_.clear();
  const std::lock_guard lock(mutex_);
  is_stopped_ = true;
  answers_.clear();
  has_work_ = false;
}

void AnswerQueue::set_wake(std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  wake_ = std::move(wake);
}

void AnswerQueue::add(OutsideAnswer answer) {
  std::vector<OutsideAnswer> one;
  one.push_back(std::move(answer));
  add_all(std::move(one));
}

void AnswerQueue::add_all(std::vector<OutsideAnswer> answers) {
  if (answers.empty()) return;
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    if (is_stopped_) return;
    if (answers_.empty()) wake = wake_;
    std::ranges::move(answers, std::back_inserter(answers_));
    has_work_ = true;
  }
  if (wake) wake();
}

void AnswerQueue::fail(Error why) {
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

}  // namespace primerl
