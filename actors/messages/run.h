/// The messages around a run: a rollout that its environment drives (docs/design/verifiers.md).
///
///   rollout ~~Run~~> env ~~RunAnswered~~> rollout        gateway ~~GatewayAddress~~> rollout
///   gateway --MemberTurn--> rollout ~~MemberClosed~~> gateway
///
/// A run plays one member of a group, or all of them if the environment scores groups. The member
/// that it begins with names it. Every Run gets exactly one RunAnswered, a cancelled one too. The
/// gateway answers every closed name with a last MemberTurn.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/messages/generation.h"
#include "graph/message.h"

namespace primerl {

/// A run within its tenant. A run that is repeated has a higher attempt.
struct MemberName {
  uint64_t ordinal = 0;  // of the group
  uint32_t attempt = 0;  // of the member
  uint32_t member = 0;   // the first that the run plays

  friend constexpr auto operator<=>(const MemberName&, const MemberName&) = default;
  template <class F>
  static void fields(F& f) {
    using N = MemberName;
    f("ordinal", &N::ordinal)("attempt", &N::attempt)("member", &N::member);
  }
};

/// Play a run. The environment's server asks the gateway at `base_url` for the policy's turns.
struct Run {
  static constexpr std::string_view kName = "Run";
  static constexpr uint32_t kVersion = 3;

  MemberName name;
  int32_t num_members = 1;
  std::string base_url;
  std::string salt;         // the `cache_salt` of every request of the run
  SamplingParams sampling;  // max_tokens is that of one turn
  std::string data;         // of the task
  Duration time_left;
  uint32_t environment = 0;  // index of the tenant's environments

  template <class F>
  static void fields(F& f) {
    using R = Run;
    f("name", &R::name)("num_members", &R::num_members)("base_url", &R::base_url)("salt", &R::salt)(
        "sampling", &R::sampling)("data", &R::data)("time_left", &R::time_left)("environment",
                                                                                &R::environment);
  }
};

/// Runs that Rollout does not need any more. Each still gets its RunAnswered.
struct CancelRuns {
  static constexpr std::string_view kName = "CancelRuns";
  static constexpr uint32_t kVersion = 1;

  std::vector<MemberName> names;  // at most kCancelRequestsMax

  template <class F>
  static void fields(F& f) {
    f("names", &CancelRuns::names);
  }
};

/// One sequence of tokens of an answer.
struct Branch {
  std::vector<int32_t> tokens;
  std::vector<std::pair<int32_t, int32_t>> sampled;  // trainable positions [first, second); rising

  friend bool operator==(const Branch&, const Branch&) = default;
  template <class F>
  static void fields(F& f) {
    f("tokens", &Branch::tokens)("sampled", &Branch::sampled);
  }
};

/// The result of one member of a run.
struct MemberResult {
  std::string fault;  // not empty: the rollout fails
  double reward = 0;
  std::vector<std::pair<std::string, double>> scores = {};
  std::vector<std::pair<std::string, double>> metrics = {};
  bool is_truncated = false;
  std::string stop_condition = {};
  int32_t num_tool_calls = 0;
  std::vector<Branch> branches = {};  // empty: the samples follow from the turns

  template <class F>
  static void fields(F& f) {
    using M = MemberResult;
    f("fault", &M::fault)("reward", &M::reward)("scores", &M::scores)("metrics", &M::metrics)(
        "is_truncated", &M::is_truncated)("stop_condition", &M::stop_condition)(
        "num_tool_calls", &M::num_tool_calls)("branches", &M::branches);
  }
};

/// The one answer to a Run.
struct RunAnswered {
  static constexpr std::string_view kName = "RunAnswered";
  static constexpr uint32_t kVersion = 1;

  MemberName name;
  bool is_lost = false;               // its server died: the run may be repeated
  std::string fault;                  // of the whole run; then there are no results
  std::vector<MemberResult> members;  // one for each member of the run

  template <class F>
  static void fields(F& f) {
    using R = RunAnswered;
    f("name", &R::name)("is_lost", &R::is_lost)("fault", &R::fault)("members", &R::members);
  }
};

/// A completed request of a run: what the policy read and sampled. A turn whose prompt begins with
/// all tokens of an earlier one extends its sequence, so only the tokens after these are here.
struct MemberTurn {
  static constexpr std::string_view kName = "MemberTurn";
  static constexpr uint32_t kVersion = 1;

  MemberName name;
  int32_t index = 0;     // of the run, from 0; in the last message the number of turns
  bool is_last = false;  // the name is closed: no turn follows, and nothing below counts
  int32_t sequence = 0;  // that it extends, or the next new one
  TokenPrefix known;     // all tokens of `sequence` before this turn
  std::vector<int32_t> prompt_tokens;  // after `known`
  std::vector<int32_t> tokens;         // sampled, as in Completion
  std::vector<float> logprobs;
  std::vector<VersionSpan> spans;
  Blob kept;

  template <class F>
  static void fields(F& f) {
    using M = MemberTurn;
    f("name", &M::name)("index", &M::index)("is_last", &M::is_last)("sequence", &M::sequence)(
        "known", &M::known)("prompt_tokens", &M::prompt_tokens)("tokens", &M::tokens)(
        "logprobs", &M::logprobs)("spans", &M::spans)("kept", &M::kept);
  }
};

/// Runs whose requests the gateway must cancel, and refuse from now on.
struct MemberClosed {
  static constexpr std::string_view kName = "MemberClosed";
  static constexpr uint32_t kVersion = 1;

  std::vector<MemberName> names;  // at most kCancelRequestsMax

  template <class F>
  static void fields(F& f) {
    f("names", &MemberClosed::names);
  }
};

/// The URL at which the gateway listens, and the key by which it knows the names of runs.
struct GatewayAddress {
  static constexpr std::string_view kName = "GatewayAddress";
  static constexpr uint32_t kVersion = 2;

  std::string base_url;   // "http://127.0.0.1:8000"
  uint64_t seal_key = 0;  // of the tenant (actors/common/run_salt.h)

  template <class F>
  static void fields(F& f) {
    f("base_url", &GatewayAddress::base_url)("seal_key", &GatewayAddress::seal_key);
  }
};

}  // namespace primerl
