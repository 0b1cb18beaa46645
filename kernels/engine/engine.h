/// Engine: generates tokens for many sequences at once (continuous batching).
///
/// One engine serves one Prefill and one Decode actor of the same actor group, on that group's one
/// thread; nothing here is thread-safe. Life of a sequence:
///
///   submit (Prefill) -> step... -> PrefillEvent -> take_over (Decode) -> step... -> FinishEvent
///                        abort (either) ------------------------------------------^
///
///                        expire (Prefill), before take_over() -------------------^
///
/// Every submitted sequence ends with exactly one FinishEvent. If a step fails, or logits are NaN
/// or infinite, the sequences concerned end as kFailed and their cached blocks are discarded; the
/// engine continues with the others. A sequence whose prefill is done keeps its KV blocks but is
/// not decoded until take_over(); the KV handle of PrefillDone names it. If prefill already ended
/// the sequence (max_tokens 1), take_over() makes its FinishEvent. Random numbers are
/// counter-based, keyed by (seed, index of the new token): other rows of the batch, chunking and
/// timing never change a sampled token. Shapes: token arrays are [num_tokens] int32.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/blob.h"
#include "graph/base/ids.h"
#include "graph/base/resource.h"
#include "kernels/engine/finish.h"
#include "kernels/engine/kv_events.h"
#include "kernels/engine/routed_experts.h"
#include "kernels/engine/sampling_params.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// Names a sequence inside one engine.
using SequenceId = Id<struct SequenceTag, uint64_t>;

struct SequenceRequest {
  SequenceId id;  // chosen by the caller, unique while the sequence lives
  TenantSlot tenant{0};
  AdapterId adapter = kWholeWeights;
  std::vector<int32_t> prompt_tokens;  // [num_prompt_tokens], >= 1
  SamplingParams sampling;
  uint64_t seed = 0;
  /// With key(), the identity for the cache: tenant and policy version of the group. See
  /// check_salt().
  std::string salt;
  int32_t priority = 0;  // lower first

  /// The weights that generate its tokens.
  WeightsKey key() const { return {tenant, adapter}; }

  template <class F>
  static void fields(F& f) {
    using S = SequenceRequest;
    f("id", &S::id)("tenant", &S::tenant)("adapter", &S::adapter)(
        "prompt_tokens", &S::prompt_tokens)("sampling", &S::sampling)("seed", &S::seed)(
        "salt", &S::salt)("priority", &S::priority);
  }
};

/// The prompt's KV is complete; the sequence waits for take_over().
struct PrefillEvent {
  SequenceId id;
  int32_t num_cached_tokens = 0;  // prompt tokens found in the prefix cache

  template <class F>
  static void fields(F& f) {
    f("id", &PrefillEvent::id)("num_cached_tokens", &PrefillEvent::num_cached_tokens);
  }
};

/// The end of a sequence. The sampled tokens include the eos or stop token that ended it, or the
/// token that completed a stop text.
struct FinishEvent {
  SequenceId id;
  FinishReason reason = FinishReason::kStop;
  /// Its PrefillEvent was returned before, so the Decode actor knows the sequence by its id.
  bool was_prefilled = false;
  std::string detail;              // the reason, when refused or failed
  std::vector<int32_t> tokens;     // [num_new_tokens]
  std::vector<float> logprobs;     // [num_new_tokens], natural log, processed distribution
  std::vector<VersionSpan> spans;  // of the request's key; together they cover exactly [0,
                                   // num_new_tokens)
  /// kept_sets.h: one entry per token if has_kept_sets(sampling); empty when refused or failed.
  Blob kept;
  int32_t num_cached_tokens = 0;
  /// [num_new_tokens, num_top_logprobs]: the likeliest tokens at each sampled position, the
  /// greatest first; among equals, the lower id first. If fewer tokens can be sampled, the rest are
  /// {-1, -infinity}.
  std::vector<TokenLogprob> top_logprobs;
  /// [num_new_tokens] if num_top_logprobs > 0: each sampled token's index in that order, from 1,
  /// among all tokens that could be sampled.
  std::vector<int32_t> ranks;
  /// [num_prompt_tokens - 1] if prompt_logprobs is set: of every token but the first.
  std::vector<float> prompt_logprobs;
  /// [num_prompt_tokens - 1, num_prompt_top_logprobs]: the likeliest tokens at each of those
  /// positions under the model's own distribution, in the order of top_logprobs.
  std::vector<TokenLogprob> prompt_top_logprobs;
  /// From routed_experts_start on, of all tokens but the last, if the request asks for them and the
  /// engine keeps them (EngineOptions::routed_experts).
  RoutedExperts routed;

  /// All fields but `kept` and the last five, which may be larger than a message.
  template <class F>
  static void fields(F& f) {
    f("id", &FinishEvent::id)("reason", &FinishEvent::reason)(
        "was_prefilled", &FinishEvent::was_prefilled)("detail", &FinishEvent::detail)(
        "tokens", &FinishEvent::tokens)("logprobs", &FinishEvent::logprobs)(
        "spans", &FinishEvent::spans)("num_cached_tokens", &FinishEvent::num_cached_tokens);
  }
};

/// A snapshot of how busy the engine is.
struct EngineState {
  int32_t num_waiting = 0;  // submitted, prompt not complete
  int32_t num_running = 0;  // taken over, decoding
  int32_t num_held = 0;     // prompt complete, not taken over
  int32_t num_free_blocks = 0;
  int32_t num_blocks = 0;
  int32_t num_room = 0;             // prompts that submit() can still queue
  uint64_t num_prefill_tokens = 0;  // this and the next fields: running totals since the start
  uint64_t num_decode_tokens = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_recomputed_tokens = 0;  // tokens that preempted sequences computed again
  uint64_t num_prefix_queries = 0;     // prompt tokens that were looked up in the cache
  uint64_t num_prefix_hits = 0;        // how many of those were found
  uint64_t num_evicted_blocks = 0;     // named blocks that were given to another sequence
  uint64_t num_adapter_loads = 0;      // adapters brought into a slot because a prompt waited
  uint64_t num_adapter_evictions = 0;  // how many of those replaced another adapter
  uint64_t num_completed = 0;          // sequences that ended as kStop or kLength
  uint64_t num_failed = 0;             // sequences that ended as kFailed
  VersionsByKey versions;              // applied last; weights loaded at the start have no version

  template <class F>
  static void fields(F& f) {
    using E = EngineState;
    f("num_waiting", &E::num_waiting)("num_running", &E::num_running)("num_held", &E::num_held)(
        "num_free_blocks", &E::num_free_blocks)("num_blocks", &E::num_blocks)(
        "num_room", &E::num_room)("num_prefill_tokens", &E::num_prefill_tokens)(
        "num_decode_tokens", &E::num_decode_tokens)("num_preemptions", &E::num_preemptions)(
        "num_recomputed_tokens", &E::num_recomputed_tokens)(
        "num_prefix_queries", &E::num_prefix_queries)("num_prefix_hits", &E::num_prefix_hits)(
        "num_evicted_blocks", &E::num_evicted_blocks)("num_adapter_loads", &E::num_adapter_loads)(
        "num_adapter_evictions", &E::num_adapter_evictions)("num_completed", &E::num_completed)(
        "num_failed", &E::num_failed)("versions", &E::versions);
  }
};

/// `detail` of a sequence that expire() ended.
inline constexpr std::string_view kLeaseEnded =
    "its lease expired before its prefilled prompt was taken over";

/// What pauses an engine, and for how long yet.
struct EngineHolder {
  std::string owner;
  Duration left;
};

class Engine : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "engine";
  /// Queues a prompt. A refusal (too long, token out of range, bad sampling) is an Error here and
  /// makes no event. A full waiting queue is kExhausted; the caller may try the same request again.
  virtual Status submit(SequenceRequest request) = 0;
  /// Moves a prefilled sequence to decoding. Unknown or already aborted: kNotFound.
  virtual Status take_over(SequenceId id) = 0;
  /// Ends a sequence in any state; its FinishEvent has reason kCancelled. Unknown ids are ignored:
  /// the sequence may have ended while the abort was on its way.
  virtual void abort(SequenceId id) = 0;
  /// The lease of a sequence whose PrefillEvent was returned has expired. If take_over() was not
  /// called, the sequence ends as kRefused, and `detail` says why. Any other sequence is unchanged.
  virtual void expire(SequenceId id) = 0;

  /// Events since the last call, in sequence order. They replace the contents of the caller's
  /// vectors.
  virtual std::vector<PrefillEvent> take_prefilled() = 0;
  virtual std::vector<FinishEvent> take_finished() = 0;

  /// Begins work that makes the later apply() of the same snapshot stop the engine for the shortest
  /// time, or continues it; steps run meanwhile. True: nothing is left to do. False: call it again,
  /// or call apply(), which does the rest. One snapshot at a time: a newer one replaces it. It
  /// changes no token and is optional; errors in a snapshot are reported by apply(). By default
  /// there is nothing to do.
  virtual bool prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) {
    (void)snapshot;
    return true;
  }
  /// Replaces all weights of the snapshot's key between two steps; those of other keys stay.
  /// Sequences in flight keep their KV and continue. Applying the current version of the key again
  /// does nothing. A new engine has no version applied, so a tenant may request tokens only after
  /// version 0 was applied. All or nothing: unknown, missing or misshapen tensors are an error that
  /// names them and both shapes, and the old weights stay. A key without free space is an error
  /// too; no engine has more than kWeightsKeysMax keys.
  virtual Result<uint64_t> apply(const WeightSnapshot& snapshot) = 0;  // number of tensors applied
  /// Forgets the weights, the versions and the named KV blocks of `key`: between two steps, as
  /// apply(). Sequences of the key that are left end as kCancelled. An engine with adapter slots
  /// then refuses requests of the key until a version of it is applied again; one with whole
  /// weights may get those of another tenant. If the tenant has no other key, its share and its
  /// claims begin anew. No other key's tokens change, and an unknown key is ignored. By default
  /// there is nothing to forget.
  virtual void drop(WeightsKey key) { (void)key; }
  /// The tenant's share, above 0 and at most 1, from the next admission on. By default ignored: an
  /// engine without tenants.
  virtual void set_share(TenantSlot tenant, double share) { (void)tenant, (void)share; }
  /// apply() once prepare() is complete; empty while it is not: call again.
  virtual Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot);

  /// Pauses or resumes the engine. While it is paused, step() does nothing, has_work() is false,
  /// running sequences keep their KV, and every other call works. Setting the same state again
  /// changes nothing. Only engines made for actors can pause (observed_engine.h); do not call it on
  /// any other.
  virtual void set_paused(bool is_paused);
  /// Records what pauses the engine, for status displays. Changes nothing else.
  virtual void show_holders(const std::vector<EngineHolder>& holders) { (void)holders; }

  /// The tensors that apply() accepts, for the handshake with the weight channel; empty: unknown
  /// before the first apply().
  virtual WeightManifest manifest() const { return {}; }

  /// Changes of the findable blocks since the last call; empty if the engine makes no such events.
  virtual KvEvents take_kv_events() { return {}; }

  virtual EngineState state() const = 0;
  /// The longest prompt plus completion that fits.
  virtual int32_t max_sequence_tokens() const = 0;
};

}  // namespace primerl
