/// DrivenRun: the turns of one run, as the gateway reported them, and the samples that follow from
/// them and the answer of the environment's server (docs/design/verifiers.md).
///
/// A **sequence** is what one turn after the other has extended. A **branch** is a sequence of the
/// answer. A turn belongs to a branch whose first tokens are the turn's prompt and tokens. It
/// trains in the first branch that it belongs to, where the answer says that it is trainable. A
/// value; not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/messages/rollout.h"
#include "actors/messages/run.h"
#include "graph/base/result.h"

namespace primerl {

class DrivenRun {
 public:
  /// An error if the turn does not follow those before.
  Status add(const MemberTurn& turn);
  int32_t num_turns() const { return static_cast<int32_t>(turns_.size()); }
  int64_t num_tokens() const;
  int64_t num_sampled() const;

  /// The arrays of a member.
  struct Samples {
    Trajectory arrays;         // tokens, sampled, logprobs, spans, kept, sample_begins, num_turns
    int32_t num_branches = 0;  // of the answer; without branches: of the turns
    int32_t num_left_out = 0;  // of them, without a token that trains
  };
  /// The samples of each member, in order; a turn is used once.
  std::vector<Result<Samples>> samples(const std::vector<MemberResult>& members) const;
  /// Turns that samples() of these members would not use.
  int32_t num_unmatched(const std::vector<Result<Samples>>& samples) const;

  template <class F>
  static void fields(F& f) {
    f("sequences", &DrivenRun::sequences_)("turns", &DrivenRun::turns_);
  }

 private:
  struct Sequence {
    std::vector<int32_t> tokens;
    std::vector<float> logprobs;  // 0 where not sampled
    TokenPrefix end;              // all its tokens
    template <class F>
    static void fields(F& f) {
      f("tokens", &Sequence::tokens)("logprobs", &Sequence::logprobs)("end", &Sequence::end);
    }
  };
  struct Turn {
    int32_t sequence = 0;
    int32_t begin = 0;  // of its tokens, in the sequence
    int32_t end = 0;
    std::vector<VersionSpan> spans;  // positions in its tokens
    Blob kept;
    template <class F>
    static void fields(F& f) {
      f("sequence", &Turn::sequence)("begin", &Turn::begin)("end", &Turn::end)(
          "spans", &Turn::spans)("kept", &Turn::kept);
    }
  };
  class Builder;

  std::vector<Sequence> sequences_;
  std::vector<Turn> turns_;
};

}  // namespace primerl
