/// Group and Member: Rollout's state of the rollouts of one task. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/generation.h"
#include "actors/messages/rollout.h"

namespace primerl {

/// Whether a rollout with `num_tokens` tokens may begin another sample of up to seq_len tokens.
constexpr bool may_begin_sample(size_t num_tokens, int64_t seq_len) {
  return static_cast<int64_t>(num_tokens) + seq_len <= kMemberTokensMax;
}

/// One rollout of a group.
struct Member {
  enum class State : uint8_t { kGenerating, kActing, kDone };

  Trajectory trajectory;  // what the trainer will see
  State state = State::kGenerating;
  uint32_t attempt = 0;  // rises with every turn that is sent again
  uint64_t seed = 0;
  std::vector<std::string> texts;  // completions of all turns
  /// In a chat: the parsed answers, and what the environment said after each.
  std::vector<ChatMessage> said = {};
  std::vector<int32_t> answers = {};  // positions of the answers in `said`, one per turn
  std::vector<Blob> kept;             // of each turn; joined in the trajectory when it ends
  uint64_t request = 0;               // while generating
  TokenPrefix asked;                  // the whole prompt of `request`
  TokenPrefix known;                  // the prompt of the last completion; its engine has it
  Time deadline;                      // of the rollout
  std::optional<Time> environment_deadline;
  InstanceId environment;         // the instance with its earlier turns; none before the first
  int32_t num_turns_told = 0;     // turns sent to `environment`
  int32_t told_from = 0;          // first turn of the last action
  std::optional<RolloutEnd> end;  // written already

  template <class F>
  static void fields(F& f) {
    using M = Member;
    f("trajectory", &M::trajectory)("state", &M::state)("attempt", &M::attempt)("seed", &M::seed)(
        "texts", &M::texts)("said", &M::said)("answers", &M::answers)("kept", &M::kept)(
        "request", &M::request)("asked", &M::asked)("known", &M::known)("deadline", &M::deadline)(
        "environment_deadline", &M::environment_deadline)("environment", &M::environment)(
        "num_turns_told", &M::num_turns_told)("told_from", &M::told_from)("end", &M::end);
  }
};

/// The rollouts of one task, opened together under one policy version.
struct Group {
  uint64_t ordinal = 0;
  uint32_t attempt = 0;
  PolicyVersion version;
  std::string salt;
  std::string prompt;
  std::vector<ChatMessage> messages = {};  // the conversation of the task; empty: a plain prompt
  std::string tools = {};                  // JSON array; empty: none
  std::vector<int32_t> prompt_tokens;
  std::vector<Member> members;
  bool is_delivered = false;  // with the trainer

  int64_t num_running() const {
    int64_t count = 0;
    for (const auto& member : members) count += member.state != Member::State::kDone;
    return count;
  }

  template <class F>
  static void fields(F& f) {
    using G = Group;
    f("ordinal", &G::ordinal)("attempt", &G::attempt)("version", &G::version)("salt", &G::salt)(
        "prompt", &G::prompt)("messages", &G::messages)("tools", &G::tools)(
        "prompt_tokens", &G::prompt_tokens)("members", &G::members)("is_delivered",
                                                                    &G::is_delivered);
  }
};

}  // namespace primerl
