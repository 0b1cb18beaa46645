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

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/common/engine_asker.h"
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

class Judge final : public EngineAsker {
 public:
  using Options = JudgeNodeOptions;
  static Contract contract();
  explicit Judge(const JudgeNodeOptions& options)
      : EngineAsker(kJudgeRequestsFrom, options.attempts_max), options_(options) {}

  Status start(Resources& resources) override;
  Status drain() override;
  Status on_peer(const PeerEvent& event) override;

 private:
  /// A question without a score.
  struct Asked {
    JudgeQuestion question;
    InstanceId asker;
    template <class F>
    static void fields(F& f) {
      f("question", &Asked::question)("asker", &Asked::asker);
    }
  };

  Status on_question(const JudgeQuestion& question);
  void refuse_question(const JudgeQuestion& question, const Error& error);
  Result<GenerateRequest> request_of(uint64_t question) override;
  void on_answer(uint64_t question, const Completion& completion) override;
  void on_fault(uint64_t question, std::string fault) override;
  std::string late_text(uint64_t question) const override;
  size_t requests_max() const override;
  Result<double> read(const JudgeReader& reader, const Completion& completion) const;
  void score(uint64_t question, double score, std::string fault);
  const JudgeReader& reader_of(uint64_t question) const {
    return readers_.at(asked_.at(question).question.reward);
  }
  const Tenant& tenant() const { return services().tenant(tenant_); }

  const JudgeNodeOptions options_;
  // Constant after start.
  const Tokenizer* tokenizer_ = nullptr;
  bool is_scripted_ = false;                 // a rehearsal: texts and answers mean nothing
  std::map<uint32_t, JudgeReader> readers_;  // by reward
  // Touched only by handlers.
  std::map<uint64_t, Asked> asked_;  // by question of EngineAsker
  Out<JudgeScore> score_;
};

}  // namespace primerl
