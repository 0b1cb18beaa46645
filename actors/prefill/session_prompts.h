/// SessionPrompts: the last prompt of each session, so that a later turn sends only what follows
/// it.
///
/// A turn's prompt is the session's last prompt, followed by the sampled tokens and the
/// environment's text. A value, part of Prefill's state; not thread-safe.
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
  /// The whole prompt of a turn: `known`, then `tokens`. Null when the session's last prompt is not
  /// `known`, or was dropped. A turn with an empty `known` has its whole prompt and is always
  /// accepted. Valid until the next call.
  ///
  /// At most `tokens_max` tokens and `sessions_max` sessions are kept, but always the newest
  /// prompt. The least recently used ones are dropped first, because the end of a session is not
  /// reported.
  const std::vector<int32_t>* take(SessionName name, const TokenPrefix& known,
                                   std::span<const int32_t> tokens, int64_t tokens_max,
                                   size_t sessions_max);

  /// Drops the sessions of a tenant.
  void drop(TenantSlot tenant);

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
    TokenPrefix prefix;     // of all tokens
    uint64_t last_use = 0;  // the prompt's key in by_age_
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
