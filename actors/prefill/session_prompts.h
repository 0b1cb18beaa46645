/// SessionPrompts: the last prompt of each session, so that a later turn brings its end alone.
///
/// A turn extends the session's last prompt exactly, by what was sampled and what the environment
/// said. A value, part of Prefill's state; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "actors/common/request_name.h"
#include "actors/messages/generation.h"

namespace primerl {

/// Greatest `tokens_max`: 1 GiB of tokens.
inline constexpr int64_t kSessionTokensLimit = int64_t{1} << 28;

class SessionPrompts {
 public:
  /// The whole prompt of a turn: `known`, then `tokens`. None when the session's last prompt is not
  /// `known`, or was forgotten; a turn that knows nothing is whole and always taken. Valid until
  /// the next call.
  ///
  /// At most so many tokens and sessions are kept, and the newest prompt whatever its length: those
  /// used least recently go first. Nobody tells when a session has ended.
  const std::vector<int32_t>* take(SessionName name, const TokenPrefix& known,
                                   std::span<const int32_t> tokens, int64_t tokens_max,
                                   size_t sessions_max);

  int64_t num_tokens() const { return num_tokens_; }
  size_t num_sessions() const { return prompts_.size(); }

  template <class F>
  static void fields(F& f) {
    using S = SessionPrompts;
    f("prompts", &S::prompts_)("by_age", &S::by_age_)("num_tokens", &S::num_tokens_)("num_uses",
                                                                                     &S::num_uses_);
  }

 private:
  struct Prompt {
    std::vector<int32_t> tokens;
    TokenPrefix prefix;     // all of them
    uint64_t last_use = 0;  // its key in by_age_
    template <class F>
    static void fields(F& f) {
      f("tokens", &Prompt::tokens)("prefix", &Prompt::prefix)("last_use", &Prompt::last_use);
    }
  };
  void forget(SessionName name);

  std::map<SessionName, Prompt> prompts_;
  std::map<uint64_t, SessionName> by_age_;
  int64_t num_tokens_ = 0;
  uint64_t num_uses_ = 0;
};

}  // namespace primerl
