/// The messages that make tokens from a prompt:
///
///   rollout --GenerateRequest--> router --> prefill --PrefillDone--> decode
///   rollout <~~Completion~~ decode | prefill.refused | router.refused
///   rollout --Cancel~~> router --Abort~~> prefill, decode
///
/// Every GenerateRequest gets exactly one Completion, whichever actor ends it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/random.h"
#include "graph/message.h"
#include "kernels/engine/finish.h"
#include "kernels/engine/routed_experts.h"
#include "kernels/engine/sampling_params.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// The number of first tokens of a prompt that two actors both have, and a digest of these tokens.
/// A prompt with another digest is another prompt.
struct TokenPrefix {
  int32_t num_tokens = 0;
  uint64_t digest = 0;

  /// This prefix, followed by `tokens`.
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

/// One turn of one trajectory. Request numbers are unique per tenant for ever, and below 2^48; a
/// repeated turn gets a new number.
///
/// A later turn sends only the tokens after the session's last prompt, so the cost of a trajectory
/// grows with its tokens, not with its turns. An engine without that prefix answers
/// kUnknownSession, and the turn is sent again with its whole prompt.
struct GenerateRequest {
  static constexpr std::string_view kName = "GenerateRequest";
  static constexpr uint32_t kVersion = 7;

  uint64_t request = 0;
  uint64_t session = 0;   // the trajectory: all turns of a session use one engine
  uint32_t attempt = 0;   // of the rollout; rises when the turn is sent again
  PolicyVersion version;  // live version when the group opened; the engine must have applied it
  std::string salt;       // separates KV caches within the tenant: the version of the group
  TokenPrefix known;      // the prefix that came with the session's last turn
  std::vector<int32_t> prompt_tokens;  // the tokens after `known`: [num_prompt_tokens -
                                       // known.num_tokens]
  uint64_t seed = 0;                   // of the sampling; random numbers are keyed by position, not
                                       // by timing
  SamplingParams sampling;
  Duration time_left = Duration::forever();  // until the sender gives up
  /// Requests of this tenant that the sender has received answers to. Each is listed once, in any
  /// later request, so the router knows which requests an engine still has to answer.
  std::vector<uint64_t> answered;
  int32_t engine = -1;  // index of the only engine that may get it; -1: the policy chooses
  /// The key of the tenant that generates; none: its moving key. `version` is this key's. One key
  /// for all turns of a session.
  AdapterId adapter{};

  int64_t num_prompt_tokens() const {
    return int64_t{known.num_tokens} + static_cast<int64_t>(prompt_tokens.size());
  }

  template <class F>
  static void fields(F& f) {
    using G = GenerateRequest;
    f("request", &G::request)("session", &G::session)("attempt", &G::attempt)(
        "version", &G::version)("salt", &G::salt)("known", &G::known)(
        "prompt_tokens", &G::prompt_tokens)("seed", &G::seed)("sampling", &G::sampling)(
        "time_left", &G::time_left)("answered", &G::answered)("engine", &G::engine)("adapter",
                                                                                    &G::adapter);
  }
};

/// A reference to the KV of a computed prompt. Only the owner can resolve it. When the lease ends,
/// the owner frees the KV.
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

/// The prompt is computed: decode continues it.
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
  static constexpr uint32_t kVersion = 4;

  uint64_t request = 0;
  uint64_t session = 0;
  uint32_t attempt = 0;
  FinishReason end = FinishReason::kRefused;
  std::string detail;              // the reason, when refused, lost or failed
  std::vector<int32_t> tokens;     // [num_new_tokens], with the stop token, if any
  std::vector<float> logprobs;     // [num_new_tokens], of the processed distribution
  std::vector<VersionSpan> spans;  // cover [0, num_new_tokens)
  Blob kept;                       // kernels/engine/kept_sets.h: the tokens that each token was
                                   // sampled from
  int32_t num_cached_tokens = 0;
  /// The next three are empty unless the request has num_top_logprobs, k.
  std::vector<int32_t> ranks;          // [num_new_tokens], from 1: FinishEvent::ranks
  std::vector<int32_t> top_tokens;     // [num_new_tokens, k]: FinishEvent::top_logprobs; -1: none
  std::vector<float> top_logprobs;     // [num_new_tokens, k]; -infinity where the token is -1
  std::vector<float> prompt_logprobs;  // [num_prompt_tokens - 1], if the request asks for them
  /// [num_prompt_tokens - 1, num_prompt_top_logprobs]: FinishEvent::prompt_top_logprobs.
  std::vector<int32_t> prompt_top_tokens;
  std::vector<float> prompt_top_logprobs;
  RoutedExperts routed;  // if the request asks for them, and the engine keeps them

  template <class F>
  static void fields(F& f) {
    using C = Completion;
    f("request", &C::request)("session", &C::session)("attempt", &C::attempt)("end", &C::end)(
        "detail", &C::detail)("tokens", &C::tokens)("logprobs", &C::logprobs)("spans", &C::spans)(
        "kept", &C::kept)("num_cached_tokens", &C::num_cached_tokens)("ranks", &C::ranks)(
        "top_tokens", &C::top_tokens)("top_logprobs", &C::top_logprobs)(
        "prompt_logprobs", &C::prompt_logprobs)("prompt_top_tokens", &C::prompt_top_tokens)(
        "prompt_top_logprobs", &C::prompt_top_logprobs)("routed", &C::routed);
  }
};

/// Most requests of one Cancel; for more, several are sent.
inline constexpr int64_t kCancelRequestsMax = 64;

/// Rollout does not need these requests any more. Each still gets its Completion (`cancelled`).
struct Cancel {
  static constexpr std::string_view kName = "Cancel";
  static constexpr uint32_t kVersion = 1;

  std::vector<uint64_t> requests;

  template <class F>
  static void fields(F& f) {
    f("requests", &Cancel::requests);
  }
};

/// The router sends it to the engine that has the request. An unknown request is ignored: it may
/// have ended while the Abort was on its way.
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
