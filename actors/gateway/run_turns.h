/// RunTurns: the turns that the gateway has made for the runs of one tenant
/// (docs/design/verifiers.md).
///
/// A turn whose prompt begins with all tokens of an earlier turn extends its sequence. Only digests
/// are kept, so a run costs as many entries as it has sequences. A value; not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "actors/messages/run.h"
#include "graph/base/result.h"

namespace primerl {

/// Closed runs of a tenant whose requests are refused. Above it the oldest is dropped: a request of
/// it is answered, and its turn has no rollout.
inline constexpr size_t kClosedRunsMax = 4096;

class RunTurns {
 public:
  /// A request of the run begins, whose prompt and answer have at most `tokens_max` tokens. An
  /// error says that the run was closed (kCancelled), or has no turns or tokens left (kInvalid, in
  /// the words by which clients know an over-long prompt). Requests that run count in both.
  Status begin(const MemberName& name, int64_t tokens_max, int64_t turns_max);
  /// A request of the run, with the `tokens_max` of its begin(), has ended without a turn.
  void end(const MemberName& name, int64_t tokens_max);
  /// The next turn of the run, with its tokens and the `tokens_max` of its begin(). `prompt` is
  /// whole.
  MemberTurn add(const MemberName& name, int64_t tokens_max, const std::vector<int32_t>& prompt,
                 const std::vector<int32_t>& tokens);
  /// Refuses requests of the run from now on. Its last turn.
  MemberTurn close(const MemberName& name);

  /// Requests that have begun so far. It never falls while one of them runs or has made a turn.
  int64_t num_begun(const MemberName& name) const;

  template <class F>
  static void fields(F& f) {
    f("open", &RunTurns::open_)("closed", &RunTurns::closed_);
  }

 private:
  struct OpenRun {
    int64_t num_begun = 0;
    int32_t num_running = 0;
    int32_t num_turns = 0;
    int64_t num_tokens = 0;   // of all sequences
    int64_t num_pending = 0;  // most tokens of the requests that run
    std::vector<TokenPrefix> sequences;
    template <class F>
    static void fields(F& f) {
      using R = OpenRun;
      f("num_begun", &R::num_begun)("num_running", &R::num_running)("num_turns", &R::num_turns)(
          "num_tokens", &R::num_tokens)("num_pending", &R::num_pending)("sequences", &R::sequences);
    }
  };
  bool is_closed(const MemberName& name) const;

  std::map<MemberName, OpenRun> open_;
  std::deque<MemberName> closed_;                // oldest first
  mutable std::set<MemberName> closed_by_name_;  // built from closed_, so it is not saved
};

}  // namespace primerl
