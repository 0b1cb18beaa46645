/// Engine: generates tokens for many sequences at once (continuous batching).
///
/// One engine serves one Prefill and one Decode actor of the same actor group, on that group's one
/// thread; nothing here is thread-safe. Life of a sequence:
///
///   submit (Prefill) -> step... -> PrefillEvent -> take_over (Decode) -> step... -> FinishEvent
///                        abort (either) ------------------------------------------^
///
///                        expire (Prefill), while nobody took it over ------------^
///
/// Every submitted sequence ends in exactly one FinishEvent. Of a step that fails, or of logits
/// that are no distribution, the sequences concerned end as kFailed; the engine goes on with the
/// others and finds nothing again of what those had computed. A sequence whose prefill is done
/// holds its KV blocks but is not decoded until take_over(): the KV handle of PrefillDone names it.
/// When prefill itself already ended the sequence (max_tokens 1), take_over() makes its
/// FinishEvent. Draws are counter-based, keyed by (seed, index of the new token): batch mates,
/// chunking and timing never change a sampled token. Shapes: token arrays are [num_tokens] int32.
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
#include "kernels/engine/sampling_params.h"
#include "kernels/weights/manifest.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// Names a sequence inside one engine.
using SequenceId = Id<struct SequenceTag, uint64_t>;

struct SequenceRequest {
  SequenceId id;  // chosen by the caller, unique while the sequence lives
  TenantSlot tenant{0};
  std::vector<int32_t> prompt_tokens;  // [num_prompt_tokens], >= 1
  SamplingParams sampling;
  uint64_t seed = 0;
  /// With key() the cache identity: tenant and policy version of the group. check_salt().
  std::string salt;
  int32_t priority = 0;  // lower first

  /// Whose weights make its tokens.
  WeightsKey key() const { return {tenant}; }

  template <class F>
  static void fields(F& f) {
    using S = SequenceRequest;
    f("id", &S::id)("tenant", &S::tenant)("prompt_tokens", &S::prompt_tokens)(
        "sampling", &S::sampling)("seed", &S::seed)("salt", &S::salt)("priority", &S::priority);
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

/// The one end of a sequence. Sampled tokens include the eos or stop token that ended it, or the
/// one that completed a stop text.
struct FinishEvent {
  SequenceId id;
  FinishReason reason = FinishReason::kStop;
  /// Its PrefillEvent was taken before: whoever heard of that names the sequence to Decode.
  bool was_prefilled = false;
  std::string detail;              // why, when refused or failed
  std::vector<int32_t> tokens;     // [num_new_tokens]
  std::vector<float> logprobs;     // [num_new_tokens], natural log, processed distribution
  std::vector<VersionSpan> spans;  // of the request's key; cover [0, num_new_tokens) exactly
  /// kept_sets.h: where has_kept_sets(sampling), one entry a token; none when refused or failed.
  Blob kept;
  int32_t num_cached_tokens = 0;
  /// [num_new_tokens, num_top_logprobs]: the likeliest tokens in the place of each sampled one, the
  /// greatest first, of equals the lower id. Where fewer can be drawn the rest are {-1, -infinity}.
  std::vector<TokenLogprob> top_logprobs;
  /// [num_prompt_tokens - 1] where prompt_logprobs: of every token but the first.
  std::vector<float> prompt_logprobs;

  /// All but `kept` and the last two, which are larger than a message may be.
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
  int32_t num_room = 0;             // prompts that submit() still queues
  uint64_t num_prefill_tokens = 0;  // running totals since the start
  uint64_t num_decode_tokens = 0;
  uint64_t num_preemptions = 0;
  uint64_t num_recomputed_tokens = 0;  // of preempted sequences
  uint64_t num_prefix_queries = 0;     // tokens of prompts that were looked up
  uint64_t num_prefix_hits = 0;        // of them, tokens that were there
  uint64_t num_evicted_blocks = 0;     // findable blocks that were given to others
  uint64_t num_adapter_loads = 0;      // adapters brought into a slot because a prompt waited
  uint64_t num_adapter_evictions = 0;  // of them, in the place of another
  uint64_t num_completed = 0;          // sequences that ended as kStop or kLength
  uint64_t num_failed = 0;             // sequences that ended as kFailed
  VersionsByKey versions;              // applied last; what was loaded has no version

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
    "its lease ended before anybody took its prefilled prompt over";

/// Who makes an engine stand still, and how long yet.
struct EngineHolder {
  std::string owner;
  Duration left;
};

class Engine : public Resource {
 public:
  static constexpr std::string_view kResourceKind = "engine";
  /// Queues a prompt. Refusal (too long, token out of range, bad sampling) is an Error here and
  /// makes no event. A full waiting queue is kExhausted, which the same request may try again.
  virtual Status submit(SequenceRequest request) = 0;
  /// Moves a prefilled sequence to decoding. Unknown or already aborted: kNotFound.
  virtual Status take_over(SequenceId id) = 0;
  /// Ends a sequence in whatever state; its FinishEvent says kCancelled. Unknown ids are ignored:
  /// the end may have crossed the abort.
  virtual void abort(SequenceId id) = 0;
  /// The lease of a sequence whose PrefillEvent was taken is over: if nobody has taken it over it
  /// ends, and its FinishEvent says kRefused and why. Any other is left alone.
  virtual void expire(SequenceId id) = 0;

  /// Events since the last call, in sequence order. The vectors are emptied into the caller's.
  virtual std::vector<PrefillEvent> take_prefilled() = 0;
  virtual std::vector<FinishEvent> take_finished() = 0;

  /// Begins to bring `snapshot` to where apply() of the same snapshot stops the engine for the
  /// shortest, or goes on with it; steps are made meanwhile. Whether there is nothing left to do:
  /// else ask again, or apply(), which does the rest. One at a time: a newer one takes its place.
  /// It changes no token and is never needed; what is wrong with a snapshot is apply()'s to say.
  /// By default there is nothing to do.
  virtual bool prepare(const std::shared_ptr<const WeightSnapshot>& snapshot) {
    (void)snapshot;
    return true;
  }
  /// Replaces all weights of the snapshot's key between two steps; those of other keys stay.
  /// Sequences in flight keep their KV and go on. Applying the version that the key has already
  /// does nothing; an engine as made has none applied, so that a tenant's first tokens may be asked
  /// for only after version 0. All or nothing: unknown, missing or misshapen tensors are an error
  /// that names them and both shapes, and the old weights stay. So does a key for which there is no
  /// room; no engine has it for more than kWeightsKeysMax.
  virtual Result<uint64_t> apply(const WeightSnapshot& snapshot) = 0;  // number of tensors applied
  /// apply() once it has prepare()d; nothing while it has not: ask again.
  virtual Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot);

  /// From now on it stands still, or goes on: while it is paused step() makes no step and
  /// has_work() is false, running sequences keep their KV, and every other call works. Saying the
  /// same again changes nothing. The engines of actors can (pausable_engine.h); any other must not
  /// be asked to stand still.
  virtual void set_paused(bool is_paused);
  /// Who makes it stand still, for whoever looks on. Changes nothing.
  virtual void show_holders(const std::vector<EngineHolder>& holders) { (void)holders; }

  /// The tensors apply() takes, for the handshake with the weight channel; empty: not known before
  /// it looks.
  virtual WeightManifest manifest() const { return {}; }

  /// What happened to the blocks that can be found since the last call; nothing where the engine
  /// makes no such events.
  virtual KvEvents take_kv_events() { return {}; }

  virtual EngineState state() const = 0;
  /// Longest prompt + completion it can hold.
  virtual int32_t max_sequence_tokens() const = 0;
};

}  // namespace primerl
