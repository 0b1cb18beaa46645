#include "actors/common/engine_asker.h"

#include <algorithm>

namespace primerl {

uint64_t EngineAsker::ask(Duration timeout) {
  const uint64_t question = next_question_++;
  Open& open = open_[question];
  open.cause = services().delivery().ref.step;
  open.deadline = services().now() + timeout;
  deadlines_.insert({open.deadline, question});
  waiting_.push_back(question);
  return question;
}

void EngineAsker::forget(uint64_t question) {
  deadlines_.erase({open_.at(question).deadline, question});
  open_.erase(question);
}

void EngineAsker::drop(const std::vector<uint64_t>& questions) {
  const std::set<uint64_t> dropped(questions.begin(), questions.end());
  std::vector<uint64_t> requests;
  for (const auto& [request, question] : requests_)
    if (dropped.contains(question)) requests.push_back(request);
  for (const uint64_t question : questions) forget(question);
  cancel(std::move(requests));
}

void EngineAsker::drop_all() {
  open_.clear();
  waiting_.clear();
  deadlines_.clear();
  std::vector<uint64_t> requests;
  for (const auto& [request, question] : requests_) requests.push_back(request);
  cancel(std::move(requests));
}

void EngineAsker::send_next() {
  while (!waiting_.empty() && !open_.contains(waiting_.front())) waiting_.pop_front();
  if (waiting_.empty() || requests_.size() + cancelled_.size() >= requests_max()) return;
  if (!can_reach_router(routers_, generate_.targets(tenant_))) return;
  const uint64_t question = waiting_.front();
  waiting_.pop_front();
  if (const Status sent = send_request(question); !sent.ok())
    on_fault(question, "the question: " + sent.error().text());
  if (!waiting_.empty()) services().set_timer("send", Duration());
}

Status EngineAsker::on_send() {
  send_next();
  return ok();
}

Status EngineAsker::send_request(uint64_t question) {
  const Open& open = open_.at(question);
  ASSIGN_OR_RETURN(GenerateRequest request, request_of(question));
  request.request = next_request_++;
  request.session = request.request;
  request.attempt = open.attempt;
  request.time_left = std::max(open.deadline - services().now(), Duration());
  request.answered = std::exchange(answered_, {});
  add_routers(routers_, generate_.targets(tenant_));
  requests_[request.request] = question;
  generate_.send(std::move(request), for_tenant(tenant_)
                                         .answering({services().self(), open.cause})
                                         .to_origin_of(services().self()));
  return ok();
}

Status EngineAsker::on_completion(const Completion& completion) {
  answered_.push_back(completion.request);
  const auto found = requests_.find(completion.request);
  if (found == requests_.end()) {
    if (cancelled_.erase(completion.request) == 0) services().count("completions_unknown", 1);
  } else {
    const uint64_t question = found->second;
    requests_.erase(found);
    switch (completion.end) {
      case FinishReason::kStop:
      case FinishReason::kLength:
        on_answer(question, completion);
        break;
      case FinishReason::kEngineLost:
      case FinishReason::kFailed:
        ask_again(question, completion.detail);
        break;
      case FinishReason::kUnknownSession:
      case FinishReason::kRefused:
      case FinishReason::kCancelled:
        on_fault(question, fmt::format("{}: {}", to_string(completion.end), completion.detail));
        break;
    }
  }
  send_next();
  arm_deadline();
  return ok();
}

void EngineAsker::ask_again(uint64_t question, const std::string& reason) {
  Open& open = open_.at(question);
  if (++open.attempt > attempts_max_)
    return on_fault(
        question, fmt::format("its engine was lost or failed {} times: {}", open.attempt, reason));
  services().count("requests_reissued", 1);
  waiting_.push_front(question);
}

void EngineAsker::cancel(std::vector<uint64_t> requests) {
  for (const uint64_t request : requests) {
    requests_.erase(request);
    cancelled_.insert(request);
  }
  for (size_t begin = 0; begin < requests.size(); begin += kCancelRequestsMax) {
    const size_t end = std::min(requests.size(), begin + kCancelRequestsMax);
    Cancel cancel;
    cancel.requests.assign(requests.begin() + static_cast<std::ptrdiff_t>(begin),
                           requests.begin() + static_cast<std::ptrdiff_t>(end));
    cancel_.send(std::move(cancel), for_tenant(tenant_).to_origin_of(services().self()));
  }
}

void EngineAsker::arm_deadline() {
  if (deadlines_.empty()) return;
  const Time first = deadlines_.begin()->first;
  // If the timer is early, it finds nothing and is set again.
  if (armed_ && *armed_ <= first) return;
  armed_ = first;
  services().set_timer("deadline", std::max(first - services().now(), Duration()));
}

/// One question per timer event, so the number of messages is bounded; the timer then fires at once
/// for the next one.
Status EngineAsker::on_deadline() {
  armed_.reset();
  if (!deadlines_.empty() && deadlines_.begin()->first <= services().now()) {
    const uint64_t question = deadlines_.begin()->second;
    for (const auto& [request, of] : requests_)
      if (of == question) {
        cancel({request});
        break;
      }
    on_fault(question, late_text(question));
  }
  arm_deadline();
  return ok();
}

Status EngineAsker::on_peer(const PeerEvent& event) {
  const bool is_router = note_router(routers_, event);
  if (event.kind == PeerEvent::Kind::kDown && is_router) {
    cancelled_.clear();
    answered_.clear();
    std::vector<uint64_t> lost;
    for (const auto& [request, question] : requests_) lost.push_back(question);
    requests_.clear();
    for (auto question = lost.rbegin(); question != lost.rend(); ++question) {
      ++open_.at(*question).attempt;
      waiting_.push_front(*question);
    }
  }
  if (!waiting_.empty()) services().set_timer("send", Duration());
  arm_deadline();
  return ok();
}

}  // namespace primerl
