#include "actors/prefill/session_prompts.h"

namespace primerl {

const std::vector<int32_t>* SessionPrompts::take(SessionName name, const TokenPrefix& known,
                                                 std::span<const int32_t> tokens,
                                                 int64_t tokens_max, size_t sessions_max) {
  auto found = prompts_.find(name);
  if (known.num_tokens == 0) {
    if (found != prompts_.end()) forget(name);
    found = prompts_.emplace(name, Prompt()).first;
  } else if (found == prompts_.end() || found->second.prefix != known) {
    return nullptr;
  } else {
    by_age_.erase(found->second.last_use);
  }
  Prompt& prompt = found->second;
  prompt.tokens.insert(prompt.tokens.end(), tokens.begin(), tokens.end());
  prompt.prefix = prompt.prefix.extended(tokens);
  prompt.last_use = num_uses_++;
  by_age_.emplace(prompt.last_use, name);
  num_tokens_ += static_cast<int64_t>(tokens.size());
  while (prompts_.size() > 1 && (num_tokens_ > tokens_max || prompts_.size() > sessions_max))
    forget(by_age_.begin()->second);
  return &prompt.tokens;
}

void SessionPrompts::drop(TenantSlot tenant) {
  for (auto next = prompts_.lower_bound({tenant, 0});
       next != prompts_.end() && next->first.tenant == tenant;)
    forget((next++)->first);
}

void SessionPrompts::forget(SessionName name) {
  const auto found = prompts_.find(name);
  num_tokens_ -= static_cast<int64_t>(found->second.tokens.size());
  by_age_.erase(found->second.last_use);
  prompts_.erase(found);
}

}  // namespace primerl
