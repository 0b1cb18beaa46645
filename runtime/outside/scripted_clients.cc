#include "runtime/outside/scripted_clients.h"

#include <deque>
#include <map>
#include <set>
#include <utility>

#include "graph/base/json.h"
#include "graph/http_calls.h"

namespace primerl {
namespace {

constexpr std::string_view kScriptedUrl = "http://scripted";

ClientRequest scripted_request(uint64_t number) {
  const uint64_t original = number % 4 == 3 ? number - 1 : number;
  Json sampling = Json::object();
  sampling.set("max_tokens", static_cast<int64_t>(original % 3) + 1);
  Json body = Json::object();
  body.set("token_ids", Json::list(std::vector<int64_t>{1, 2, static_cast<int64_t>(original) + 3}))
      .set("sampling_params", std::move(sampling));
  ClientRequest request;
  request.method = "POST";
  request.path = "/inference/v1/generate";
  request.session = fmt::format("client-{}", original);
  request.body = body.dump();
  return request;
}

class ScriptedClients final : public Outside {
 public:
  ScriptedClients(const ScriptedClientsOptions& options, ScriptedClientsCounts* counts,
                  std::shared_ptr<ScriptedRequests> runs)
      : options_(options), counts_(counts), runs_(std::move(runs)) {}

  Status ask(OutsideCall call) override {
    if (is_stopped_) return ok();
    ASSIGN_OR_RETURN(const HttpCall read, read_http_call(call.body));
    switch (read.kind) {
      case HttpCall::Kind::kAccept:
        accepts_.push_back(call.id);
        break;
      case HttpCall::Kind::kClosed:
        closed_calls_.push_back(call.id);
        break;
      case HttpCall::Kind::kReply:
        get(call.id, read.reply);
        break;
      case HttpCall::Kind::kAddress:
        if (read.known != kScriptedUrl)
          answers_.push_back({call.id, OutsideEnd::kDone, write_address(kScriptedUrl)});
        break;
    }
    give();
    return ok();
  }
  void forget(uint32_t, uint64_t) override {}
  std::vector<OutsideAnswer> receive_answers() override {
    if (!is_stopped_) give();
    std::vector<OutsideAnswer> received;
    for (; !answers_.empty() && received.size() < kOutsideAnswersMax; answers_.pop_front())
      received.push_back(std::move(answers_.front()));
    return received;
  }
  void stop() override {
    is_stopped_ = true;
    answers_.clear();
  }
  void set_wake(std::function<void()> wake) override {
    if (runs_ != nullptr) runs_->set_wake(std::move(wake));
  }
  bool has_work() const override {
    if (is_stopped_) return false;
    return !answers_.empty() || (runs_ != nullptr && runs_->has_request() && !accepts_.empty());
  }

 private:
  void get(uint64_t call, const ClientReply& reply) {
    if (const auto ticket = tickets_.find(reply.request); ticket != tickets_.end()) {
      const bool is_sent = runs_->reply(ticket->second, reply);
      tickets_.erase(reply.request);
      answers_.push_back({call, OutsideEnd::kDone, write_sent(is_sent)});
      return;
    }
    const bool is_open = open_.erase(reply.request) > 0;
    if (is_open && counts_ != nullptr) {
      ++counts_->num_replies;
      counts_->num_done += reply.status == 200 ? 1 : 0;
    }
    answers_.push_back({call, OutsideEnd::kDone, write_sent(is_open)});
  }

  void give() {
    for (; !accepts_.empty() && num_sent_ < options_.num_requests; accepts_.pop_front()) {
      const uint64_t number = num_sent_++;
      answers_.push_back(
          {accepts_.front(), OutsideEnd::kDone, write_client_request(scripted_request(number))});
      const bool leaves = options_.leaves_every > 0 && (number + 1) % options_.leaves_every == 0;
      (leaves ? leaving_ : open_).insert(accepts_.front());
    }
    give_runs();
    if (leaving_.empty() || closed_calls_.empty()) return;
    answers_.push_back({closed_calls_.front(), OutsideEnd::kDone,
                        write_closed({leaving_.begin(), leaving_.end()})});
    closed_calls_.pop_front();
    leaving_.clear();
  }

  void give_runs() {
    if (runs_ == nullptr) return;
    for (const uint64_t gone : runs_->remove_gone())
      for (const auto& [request, ticket] : tickets_)
        if (ticket == gone) leaving_.insert(request);
    for (; !accepts_.empty(); accepts_.pop_front()) {
      const auto accepted = runs_->accept();
      if (!accepted) return;
      tickets_[accepts_.front()] = accepted->ticket;
      answers_.push_back(
          {accepts_.front(), OutsideEnd::kDone, write_client_request(accepted->request)});
    }
  }

  const ScriptedClientsOptions options_;
  ScriptedClientsCounts* const counts_;
  const std::shared_ptr<ScriptedRequests> runs_;
  std::map<uint64_t, uint64_t> tickets_;  // of requests of runs that have no reply
  bool is_stopped_ = false;
  uint64_t num_sent_ = 0;
  std::deque<uint64_t> accepts_, closed_calls_;
  std::set<uint64_t> open_, leaving_;  // requests
  std::deque<OutsideAnswer> answers_;
};

}  // namespace

std::shared_ptr<Outside> make_scripted_clients(const ScriptedClientsOptions& options,
                                               ScriptedClientsCounts* counts,
                                               std::shared_ptr<ScriptedRequests> runs) {
  return std::make_shared<ScriptedClients>(options, counts, std::move(runs));
}

}  // namespace primerl
