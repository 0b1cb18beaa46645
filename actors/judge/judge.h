/// Asks a frozen model of the graph to score answers (docs/design/judge.md).
///
///   question   ->  [ judge ]  -> generate
///   completion ~~~>           ~~~> score, cancel
///
/// Threads: pooled. State: the questions of one tenant that have no score. Order: questions are
/// asked in the order in which they came. At most as many requests are open as the tenant may have
/// rollouts in flight, cancelled ones included until they are answered; further questions wait
/// here. Every question gets exactly one score, at the latest at its deadline.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "actors/env/rewards/judge.h"
#include "actors/messages/generation.h"
#include "actors/messages/judge.h"
#include "graph/contract.h"
#include "kernels/text/chat/format.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct JudgeNodeOptions {
  std::string model;         // whose tokenizer and chat template are used; empty = the only model
  int64_t attempts_max = 3;  // engine losses or failures that one question survives
};

inline constexpr std::string_view kJudgeActor = "judge";

/// Judges have request numbers of their own, so that a tenant's requests have different numbers.
inline constexpr uint64_t kJudgeRequestsFrom = uint64_t{1} << 47;

/// Options, chat format and tokens of one reward.
struct JudgeReader {
  JudgeOptions options;
  std::optional<chat::ChatFormat> chat;  // none: the model has no chat template
  int32_t yes = -1, no = -1;             // tokens, for "yes_no"

  bool is_yes_no() const { return options.score == "yes_no"; }
};

/// An error if the options do not fit the model of `tokenizer`, which must stay valid.
Result<JudgeReader> make_judge_reader(const TenantReward& reward, const Tenant& tenant,
                                      const Tokenizer& tokenizer);

class Judge final : public Actor {
 public:
  using Options = JudgeNodeOptions;
  static Contract contract();
  explicit Judge(const JudgeNodeOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Status drain() override;
  bool idle() const override { return requests_.empty() && cancelled_.empty(); }
  Status on_peer(const PeerEvent& event) override;

 private:
  /// A question without a score.
  struct Asked {
    JudgeQuestion question;
    InstanceId asker;
    uint64_t cause = 0;  // step of this actor group that got the question
    uint32_t attempt = 0;
    Time deadline;
    template <class F>
    static void fields(F& f) {
      f("question", &Asked::question)("asker", &Asked::asker)("cause", &Asked::cause)(
          "attempt", &Asked::attempt)("deadline", &Asked::deadline);
    }
  };

  Status on_question(const JudgeQuestion& question);
  void refuse_question(const JudgeQuestion& question, const Error& error);
  Status on_completion(const Completion& completion);
  Status on_deadline();
  Status on_send();

  /// Sends at most one request, if one waits and the bound allows it. The timer sends the next.
  void send_next();
  Status send_request(uint64_t arrival);
  Result<double> read(const JudgeReader& reader, const Completion& completion) const;
  void on_tokens(uint64_t arrival, const Completion& completion);
  /// Asks again after a lost engine, or gives up.
  void ask_again(uint64_t arrival, const std::string& reason);
  void answer(uint64_t arrival, double score, std::string fault);
  void cancel(std::vector<uint64_t> requests);
  void arm_deadline();
  const Tenant& tenant() const { return services().tenant(tenant_); }
  size_t requests_max() const;

  const JudgeNodeOptions options_;
  // Constant after start.
  const Tokenizer* tokenizer_ = nullptr;
  bool is_scripted_ = false;  // a rehearsal: texts and answers mean nothing
  TenantSlot tenant_;
  std::map<uint32_t, JudgeReader> readers_;  // by reward
  // Touched only by handlers.
  std::map<uint64_t, Asked> asked_;                // by number of arrival
  std::deque<uint64_t> waiting_;                   // to be sent; some have ended meanwhile
  std::map<uint64_t, uint64_t> requests_;          // open, with their arrivals
  std::set<uint64_t> cancelled_;                   // cancelled requests without an answer
  std::set<std::pair<Time, uint64_t>> deadlines_;  // of asked_
  std::vector<uint64_t> answered_;                 // to be reported with the next request
  std::set<InstanceId> routers_;
  std::optional<Time> armed_;
  uint64_t next_arrival_ = 0;
  uint64_t next_request_ = kJudgeRequestsFrom;
  bool is_draining_ = false;
  Out<GenerateRequest> generate_;
  Out<JudgeScore> score_;
  Out<Cancel> cancel_;
};

}  // namespace primerl
