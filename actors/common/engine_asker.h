/// EngineAsker: the base class of Judge and Teacher, the actors that ask a frozen engine of their
/// own.
///
///   completion ~~~>  [ ... ]  -> generate
///                             ~~~> cancel
///
/// A question is one request to the engine. At most requests_max() requests are open, cancelled
/// ones included until they are answered; further questions wait here, in their order. A question
/// whose engine was lost or failed is asked again, up to a bound. Each question ends once, at the
/// latest at its deadline: on_answer(), or on_fault().
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "actors/common/known_routers.h"
#include "actors/messages/generation.h"
#include "graph/contract.h"
#include "graph/tenancies.h"

namespace primerl {

/// Most Cancel messages for `requests` open requests.
inline int64_t num_cancels(int64_t requests) { return requests / kCancelRequestsMax + 1; }

/// An actor with a timer "deadline" for on_deadline() and a timer "send" for on_send().
class EngineAsker : public Actor {
 public:
  bool idle() const override { return requests_.empty() && cancelled_.empty(); }
  /// The state of a router that has gone is lost, so its requests are sent again.
  Status on_peer(const PeerEvent& event) override;

 protected:
  /// `first_request`: actors of one tenant have request numbers of their own.
  EngineAsker(uint64_t first_request, int64_t attempts_max)
      : attempts_max_(attempts_max), next_request_(first_request) {}

  /// For start(): requests of a later tenant of the slot have numbers of their own.
  void begin_requests(const Tenant& tenant) { next_request_ += first_request_of(tenant.tenancy); }

  /// Prompt, sampling, salt and seed of a question; the rest is filled in.
  virtual Result<GenerateRequest> request_of(uint64_t question) = 0;
  /// The question has its completion (`stop` or `length`), or a reason why it never will.
  virtual void on_answer(uint64_t question, const Completion& completion) = 0;
  virtual void on_fault(uint64_t question, std::string fault) = 0;
  /// The fault of a question at its deadline: "no score within 3s".
  virtual std::string late_text(uint64_t question) const = 0;
  virtual size_t requests_max() const = 0;

  /// A new question, which ends in `timeout`; call send_next() and arm_deadline() afterwards.
  uint64_t ask(Duration timeout);
  /// The step of this actor group that brought the question.
  uint64_t cause_of(uint64_t question) const { return open_.at(question).cause; }
  /// The question has ended; its request, if there is one, has been answered or cancelled.
  void forget(uint64_t question);
  /// Ends questions without an answer, and cancels their requests.
  void drop(const std::vector<uint64_t>& questions);
  void drop_all();
  /// Sends at most one request, if a question waits and the bound allows it. The timer sends the
  /// next.
  void send_next();
  void arm_deadline();
  Status on_completion(const Completion& completion);
  Status on_deadline();
  Status on_send();
  /// The members that handlers change here, for the contract of the derived actor.
  template <class F>
  static void asker_fields(F& f) {
    using E = EngineAsker;
    f("open", &E::open_)("waiting", &E::waiting_)("requests", &E::requests_)(
        "cancelled", &E::cancelled_)("deadlines", &E::deadlines_)("answered", &E::answered_)(
        "routers", &E::routers_)("armed", &E::armed_)("next_arrival", &E::next_question_)(
        "next_request", &E::next_request_)("is_draining", &E::is_draining_);
  }

  TenantSlot tenant_;  // set by start() of the derived actor
  bool is_draining_ = false;
  Out<GenerateRequest> generate_;
  Out<Cancel> cancel_;

 private:
  /// A question that has not ended.
  struct Open {
    uint64_t cause = 0;
    uint32_t attempt = 0;
    Time deadline;
    template <class F>
    static void fields(F& f) {
      f("cause", &Open::cause)("attempt", &Open::attempt)("deadline", &Open::deadline);
    }
  };
  Status send_request(uint64_t question);
  void ask_again(uint64_t question, const std::string& reason);
  void cancel(std::vector<uint64_t> requests);

  const int64_t attempts_max_;
  // Touched only by handlers.
  std::map<uint64_t, Open> open_;                  // by number of arrival
  std::deque<uint64_t> waiting_;                   // to be sent; some have ended meanwhile
  std::map<uint64_t, uint64_t> requests_;          // open, with their questions
  std::set<uint64_t> cancelled_;                   // cancelled requests without an answer
  std::set<std::pair<Time, uint64_t>> deadlines_;  // of open_
  std::vector<uint64_t> answered_;                 // to be reported with the next request
  KnownRouters routers_;
  std::optional<Time> armed_;
  uint64_t next_question_ = 0;
  uint64_t next_request_;
};

}  // namespace primerl
