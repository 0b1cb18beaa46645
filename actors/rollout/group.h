/// Group and Member: Rollout's state of the rollouts of one task. Plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/messages/generation.h"
#include "actors/messages/rollout.h"
#include "actors/messages/run.h"
#include "actors/rollout/driven_run.h"

namespace primerl {

/// Whether a rollout with `num_tokens` tokens may begin another sample of up to seq_len tokens.
constexpr bool may_begin_sample(size_t num_tokens, int64_t seq_len) {
  return static_cast<int64_t>(num_tokens) + seq_len <= kMemberTokensMax;
}

/// A run without an end: it plays the members from its own to the next one with a run.
struct OpenRun {
  DrivenRun turns;
  bool is_sent = false;
  bool has_ended = false;             // its server has answered; the gateway has not
  bool has_moved = false;             // its gateway has another address: a failed run is repeated
  std::vector<MemberResult> results;  // of each of its members, when it has ended

  template <class F>
  static void fields(F& f) {
    using R = OpenRun;
    f("turns", &R::turns)("is_sent", &R::is_sent)("has_ended", &R::has_ended)(
        "has_moved", &R::has_moved)("results", &R::results);
  }
};

/// The report of a run on one rollout, for rollouts.jsonl and metrics.
struct RunReport {
  int32_t num_branches = 0;
  int32_t num_left_out = 0;   // branches without a token that trains
  int32_t num_unmatched = 0;  // turns of the run that are in no branch
  int32_t num_tool_calls = 0;
  std::string stop_condition;
  std::vector<std::pair<std::string, double>> scores, metrics;

  template <class F>
  static void fields(F& f) {
    using R = RunReport;
    f("num_branches", &R::num_branches)("num_left_out", &R::num_left_out)(
        "num_unmatched", &R::num_unmatched)("num_tool_calls", &R::num_tool_calls)(
        "stop_condition", &R::stop_condition)("scores", &R::scores)("metrics", &R::metrics);
  }
};

inline constexpr uint64_t kNotSent = UINT64_MAX;  // Member::request

/// One rollout of a group.
struct Member {
  /// kPlaying: a run has it.
  enum class State : uint8_t { kGenerating, kActing, kDone, kPlaying };

  Trajectory trajectory;  // what the trainer will see
  State state = State::kGenerating;
  uint32_t attempt = 0;  // rises with every turn that is sent again
  uint64_t seed = 0;
  std::vector<std::string> texts;  // completions of all turns
  /// In a chat: the parsed answers, and what the environment said after each.
  std::vector<ChatMessage> said = {};
  std::vector<int32_t> answers = {};  // positions of the answers in `said`, one per turn
  std::vector<Blob> kept;             // of each turn; joined in the trajectory when it ends
  uint64_t request = 0;               // while generating; kNotSent: it waits for a router
  TokenPrefix asked;                  // the whole prompt of `request`
  TokenPrefix known;                  // the prompt of the last completion; its engine has it
  Time deadline;                      // of the rollout
  std::optional<Time> environment_deadline;
  InstanceId environment;         // the instance with its earlier turns; none before the first
  int32_t num_turns_told = 0;     // turns sent to `environment`
  int32_t told_from = 0;          // first turn of the last action
  std::optional<RolloutEnd> end;  // written already
  std::optional<OpenRun> run;     // of the first member that it plays
  std::optional<RunReport> report;

  template <class F>
  static void fields(F& f) {
    using M = Member;
    f("trajectory", &M::trajectory)("state", &M::state)("attempt", &M::attempt)("seed", &M::seed)(
        "texts", &M::texts)("said", &M::said)("answers", &M::answers)("kept", &M::kept)(
        "request", &M::request)("asked", &M::asked)("known", &M::known)("deadline", &M::deadline)(
        "environment_deadline", &M::environment_deadline)("environment", &M::environment)(
        "num_turns_told", &M::num_turns_told)("told_from", &M::told_from)("end", &M::end)(
        "run", &M::run)("report", &M::report);
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
  std::string data = {};      // of the task; not empty: its rollouts are driven
  bool scores_groups = false;
  TaskSource source = {};  // of the task; evaluations have only its environment

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
        "prompt_tokens", &G::prompt_tokens)("members", &G::members)(
        "is_delivered", &G::is_delivered)("data", &G::data)("scores_groups", &G::scores_groups)(
        "source", &G::source);
  }
};

}  // namespace primerl
