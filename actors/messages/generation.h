/// The conversation that turns a prompt into tokens:
///
///   rollout --GenerateRequest--> router --> prefill --PrefillDone--> decode
///   rollout <~~Completion~~ decode | prefill.refused | router.refused
///   rollout --Cancel~~> router --Abort~~> prefill, decode
///
/// Every GenerateRequest gets exactly one Completion, whoever ends it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/random.h"
#include "graph/message.h"
#include "kernels/engine/finish.h"

namespace primerl {

/// How many of a prompt's first tokens two actors have in common, and a digest of them: a copy with
/// another digest is another prompt.
struct TokenPrefix {
  int32_t num_tokens = 0;
  uint64_t digest = 0;

  /// This one and `tokens` behind it.
  TokenPrefix extended(std::span<const int32_t> tokens) const {
    TokenPrefix longer{num_tokens + static_cast<int32_t>(tokens.size()), digest};
    for (const int32_t token : tokens)
      longer.digest = mix(longer.digest, static_cast<uint32_t>(token));
    return longer;
  }

  friend bool operator==(const TokenPrefix&, const TokenPrefix&) = default;
  template <class F>
  static void fields(F& f) {
    f("num_tokens", &TokenPrefix::num_tokens)("digest", &TokenPrefix::digest);
  }
};

/// One turn of one trajectory. Request numbers are unique per tenant for ever, below 2^48; a
/// re-issued turn gets a new one.
///
/// A later turn brings only what its prompt has beyond the session's last one, so that a trajectory
/// of many turns costs what it has tokens. An engine without that beginning answers
/// kUnknownSession, and the turn is asked for again with its whole prompt.
struct GenerateRequest {
  static constexpr std::string_view kName = "GenerateRequest";
  static constexpr uint32_t kVersion = 3;

  uint64_t request = 0;
  uint64_t session = 0;   // the trajectory: turns of one session stay on one engine
  uint32_t attempt = 0;   // of the rollout; a re-issued one counts up
  PolicyVersion version;  // live when the group opened: the engine must have applied it
  std::string salt;       // KV cache identity within the tenant: version of the group
  TokenPrefix known;      // of the prompt: what came with the session's last turn
  std::vector<int32_t> prompt_tokens;  // [num_prompt_tokens - known.num_tokens]: what follows it
  uint64_t seed = 0;                   // of the draws; keyed by position, never by timing
  double temperature = 1.0;
  double top_p = 1.0;
  double min_p = 0.0;
  int32_t top_k = 0;
  int32_t max_tokens = 16;
  bool ignore_eos = false;
  std::vector<int32_t> stop_ids;
  std::vector<std::string> stop;             // texts
  Duration time_left = Duration::forever();  // until the asker gives up
  /// Requests of this tenant that the asker has an answer to, each told once, in any request after
  /// it: so the router knows what an engine still owes.
  std::vector<uint64_t> answered;

  int64_t num_prompt_tokens() const {
    return int64_t{known.num_tokens} + static_cast<int64_t>(prompt_tokens.size());
  }

  template <class F>
  static void fields(F& f) {
    using G = GenerateRequest;
    f("request", &G::request)("session", &G::session)("attempt", &G::attempt)(
        "version", &G::version)("salt", &G::salt)("known", &G::known)(
        "prompt_tokens", &G::prompt_tokens)("seed", &G::seed)("temperature", &G::temperature)(
        "top_p", &G::top_p)("min_p", &G::min_p)("top_k", &G::top_k)("max_tokens", &G::max_tokens)(
        "ignore_eos", &G::ignore_eos)("stop_ids", &G::stop_ids)("stop", &G::stop)(
        "time_left", &G::time_left)("answered", &G::answered);
  }
};

/// Where a finished prompt's KV lies. Only the owner resolves it; an expired lease frees it.
struct KvHandle {
  InstanceId owner;
  uint32_t incarnation = 0;
  uint64_t id = 0;  // the engine's SequenceId
  Duration lease = Duration::seconds(30);

  template <class F>
  static void fields(F& f) {
    f("owner", &KvHandle::owner)("incarnation", &KvHandle::incarnation)("id", &KvHandle::id)(
        "lease", &KvHandle::lease);
  }
};

/// The prompt is computed: decode takes it from here.
struct PrefillDone {
  static constexpr std::string_view kName = "PrefillDone";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  uint64_t session = 0;
  uint32_t attempt = 0;
  KvHandle kv;
  int32_t num_prompt_tokens = 0;
  int32_t num_cached_tokens = 0;

  template <class F>
  static void fields(F& f) {
    using P = PrefillDone;
    f("request", &P::request)("session", &P::session)("attempt", &P::attempt)("kv", &P::kv)(
        "num_prompt_tokens", &P::num_prompt_tokens)("num_cached_tokens", &P::num_cached_tokens);
  }
};

/// The one answer to a GenerateRequest.
struct Completion {
  static constexpr std::string_view kName = "Completion";
  static constexpr uint32_t kVersion = 2;

  uint64_t request = 0;
  uint64_t session = 0;
  uint32_t attempt = 0;
  FinishReason end = FinishReason::kRefused;
  std::string detail;              // why, when refused, lost or failed
  std::vector<int32_t> tokens;     // [num_new_tokens], with the token that stopped it
  std::vector<float> logprobs;     // [num_new_tokens], of the processed distribution
  std::vector<VersionSpan> spans;  // cover [0, num_new_tokens)
  Blob kept;                       // kernels/engine/kept_sets.h: what each token was drawn from
  int32_t num_cached_tokens = 0;

  template <class F>
  static void fields(F& f) {
    using C = Completion;
    f("request", &C::request)("session", &C::session)("attempt", &C::attempt)("end", &C::end)(
        "detail", &C::detail)("tokens", &C::tokens)("logprobs", &C::logprobs)("spans", &C::spans)(
        "kept", &C::kept)("num_cached_tokens", &C::num_cached_tokens);
  }
};

/// Most requests of one Cancel; more are told in several.
inline constexpr int64_t kCancelRequestsMax = 64;

/// Rollout no longer wants these requests; each still gets its Completion (`cancelled`).
struct Cancel {
  static constexpr std::string_view kName = "Cancel";
  static constexpr uint32_t kVersion = 1;

  std::vector<uint64_t> requests;

  template <class F>
  static void fields(F& f) {
    f("requests", &Cancel::requests);
  }
};

/// Router to the engine that holds the request. Unknown requests are ignored: the end may have
/// crossed.
struct Abort {
  static constexpr std::string_view kName = "Abort";
  static constexpr uint32_t kVersion = 1;

  uint64_t request = 0;
  uint32_t attempt = 0;

  template <class F>
  static void fields(F& f) {
    f("request", &Abort::request)("attempt", &Abort::attempt);
  }
};

}  // namespace primerl
