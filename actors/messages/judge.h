/// The messages with a judge, a frozen model of the graph that scores answers:
///
///   env --JudgeQuestion--> judge ~~JudgeScore~~> env
///
/// Every JudgeQuestion gets exactly one JudgeScore.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/message.h"
#include "kernels/text/chat/message.h"

namespace primerl {

/// One answer to score.
struct JudgeQuestion {
  static constexpr std::string_view kName = "JudgeQuestion";
  static constexpr uint32_t kVersion = 1;

  uint64_t question = 0;  // unique for the sender
  uint32_t reward = 0;  // index among the tenant's rewards; its options say how to read the answer
  std::vector<ChatMessage> messages;  // the conversation that the judge continues

  template <class F>
  static void fields(F& f) {
    using Q = JudgeQuestion;
    f("question", &Q::question)("reward", &Q::reward)("messages", &Q::messages);
  }
};

struct JudgeScore {
  static constexpr std::string_view kName = "JudgeScore";
  static constexpr uint32_t kVersion = 1;

  uint64_t question = 0;
  double score = 0;   // in [0, 1]
  std::string fault;  // not empty: there is no score, and the rollout fails

  template <class F>
  static void fields(F& f) {
    f("question", &JudgeScore::question)("score", &JudgeScore::score)("fault", &JudgeScore::fault);
  }
};

}  // namespace primerl
