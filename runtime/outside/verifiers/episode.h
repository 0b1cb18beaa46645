/// Makes the results of a run's members from a server's reply: rewards, ends, branches.
///
/// A branch is one path through the messages of a rollout, as token ids, and the ranges of it that
/// the policy sampled and may train. Pure functions, any thread.
#pragma once

#include <cstdint>

#include "graph/base/json.h"
#include "runtime/outside/verifiers/dialect.h"

namespace primerl {

/// Token ids, and messages, of all branches of one member; beyond it the member fails. Branches
/// repeat what they share.
inline constexpr int64_t kBranchTokensMax = int64_t{4} << 20;
inline constexpr int64_t kBranchMessagesMax = int64_t{1} << 20;

/// The answer to a call "run" (docs/design/verifiers.md): {"members": [...]}.
///
/// `reply` succeeded; of W2 it is that of EpisodeAssembly::finish(). A member that the server calls
/// failed, or whose data cannot be used, has `end` "failed" and a reason, and never a reward.
/// kCorrupt: the reply is not for `members` members.
Result<Json> run_answer(VerifiersDialect dialect, const Json& reply, int64_t members);

}  // namespace primerl
