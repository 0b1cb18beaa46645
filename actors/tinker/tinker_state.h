/// State of the tinker actor: sessions, models, samplers and their requests. Plain values with
/// fields(): a saved state has all of them. Touched by the actor alone.
#pragma once

#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "actors/common/sent_requests.h"
#include "actors/common/token_budget.h"
#include "actors/messages/client.h"
#include "actors/messages/generation.h"
#include "actors/tinker/loss_request.h"
#include "actors/tinker/names.h"
#include "actors/tinker/sampled_runs.h"
#include "graph/base/clock.h"
#include "graph/base/ids.h"

namespace primerl::tinker {

inline constexpr Time kNever = Time::from_nanoseconds(INT64_MAX);
/// Versions of a moving key whose updates are known.
inline constexpr size_t kPublishedMax = 64;
/// The end of weights that are kept `ttl_seconds` from `now`; 0: kNever.
Time expiry(Time now, int64_t ttl_seconds);

/// The parts of the model that an adapter with these targets changes.
struct TrainedParts {
  bool attention = false, mlp = false, unembed = false;
  explicit TrainedParts(const std::vector<std::string>& targets);
};

struct Session {
  TenantSlot tenant;
  Time seen;  // the last request that named it, or a model, sampler or open request of it
  template <class F>
  static void fields(F& f) {
    f("tenant", &Session::tenant)("seen", &Session::seen);
  }
};

/// A model that is open: its tenant's adapter is bound to it.
struct Model {
  TenantSlot tenant;
  std::string session;
  std::string base_model;  // as the client named it
  template <class F>
  static void fields(F& f) {
    f("tenant", &Model::tenant)("session", &Model::session)("base_model", &Model::base_model);
  }
};

/// A view of weights of the tenant.
struct Sampler {
  TenantSlot tenant;
  std::string session;
  std::string base_model;
  std::string path;   // the saved weights that it was made from; empty: none
  AdapterId adapter;  // of a snapshot; none: the moving key
  std::string salt;   // of its KV blocks
  uint64_t used = 0;  // rises with each use
  // Programs that share it: the one that made it is number 0.
  int64_t num_clients = 1;
  template <class F>
  static void fields(F& f) {
    using S = Sampler;
    f("tenant", &S::tenant)("session", &S::session)("base_model", &S::base_model)("path", &S::path)(
        "adapter", &S::adapter)("salt", &S::salt)("used", &S::used)("num_clients", &S::num_clients);
  }
};

/// Weights under a key of their own. They are in use while a sample of them is open.
struct Snapshot {
  PolicyVersion version;
  std::string path;      // empty: only samplers name it
  uint64_t used = 0;     // rises with each use
  bool is_base = false;  // the base model, without an adapter
  int64_t update = 0;    // updates of the tenant when it was made
  Time made;
  Time expires = kNever;
  template <class F>
  static void fields(F& f) {
    using S = Snapshot;
    f("version", &S::version)("path", &S::path)("used", &S::used)("is_base", &S::is_base)(
        "update", &S::update)("made", &S::made)("expires", &S::expires);
  }
};

/// Saved weights, for training.
struct Saved {
  TenantSlot tenant;
  std::string folder;  // their name at the trainer
  Time made;
  Time expires = kNever;
  template <class F>
  static void fields(F& f) {
    f("tenant", &Saved::tenant)("folder", &Saved::folder)("made", &Saved::made)("expires",
                                                                                &Saved::expires);
  }
};

enum class JobKind : uint8_t {
  kCreate,  // a model
  kLoad,    // into a model that is open, or into a new one
  kPass,
  kUpdate,
  kSave,
  kSnapshot,
  kPublish,
  kDropSnapshot,  // these three are the actor's own: they have no future
  kDropSaved,
  kBase,  // the weights of the base model, for samplers
};

/// Whether its answer has a weights key of its own.
inline bool has_own_key(JobKind kind) {
  return kind == JobKind::kSnapshot || kind == JobKind::kBase;
}

/// A request to the trainer, from its arrival to its answer.
struct Job {
  JobKind kind = JobKind::kPass;
  TenantSlot tenant;
  std::string model;         // its model, also the one that it makes
  std::string session;       // of a model or a sampler that it makes
  std::string base_model;    // of a model that it makes
  bool makes_model = false;  // kCreate, and a load into a new model
  Time since;                // of makes_model: when it came
  Time deadline = kNever;    // of the trainer's answer, then of the version that goes live
  uint64_t num_bytes = 0;    // of its body
  LossBatch batch;           // kPass
  std::vector<TargetShape> shapes;
  std::vector<int64_t> ages;     // of its data, once it is sent; -1: not known
  bool is_forward_only = false;  // the same
  AdamNumbers adam;              // kUpdate
  SavedWeights saved;            // of kSave, kLoad; of kSnapshot if it has a name
  std::string folder;            // at the trainer: of kDropSaved, of kLoad once it is sent
  bool with_optimizer = false;   // of kLoad
  bool overwrites = false;       // of kSave
  int64_t sampler_seq = -1;      // of a sampler that it makes; -1: none
  int64_t ttl_seconds = 0;       // 0: never
  ClientFault refused;           // why it fails without being sent
  bool is_sent = false;          // to the trainer
  bool is_reset = false;         // a load into a new model: the reset is done
  bool waits_for_live = false;   // for the version below
  AdapterId adapter;             // of kDropSnapshot; then what was published
  PolicyVersion version;         // what was published
  int64_t update = 0;            // updates of the tenant then
  template <class F>
  static void fields(F& f) {
    using J = Job;
    f("kind", &J::kind)("tenant", &J::tenant)("model", &J::model)("session", &J::session)(
        "base_model", &J::base_model)("makes_model", &J::makes_model)("num_bytes", &J::num_bytes)(
        "batch", &J::batch)("shapes", &J::shapes)("ages", &J::ages)(
        "is_forward_only", &J::is_forward_only)("adam", &J::adam)("saved", &J::saved)(
        "folder", &J::folder)("with_optimizer", &J::with_optimizer)("overwrites", &J::overwrites)(
        "sampler_seq", &J::sampler_seq)("ttl_seconds", &J::ttl_seconds)("refused", &J::refused)(
        "is_sent", &J::is_sent)("is_reset", &J::is_reset)("waits_for_live", &J::waits_for_live)(
        "adapter", &J::adapter)("version", &J::version)("update", &J::update)("since", &J::since)(
        "deadline", &J::deadline);
  }
};

/// One sequence of a sample.
struct Part {
  uint64_t request = 0;  // of its GenerateRequest; 0: it is not sent
  uint32_t attempt = 0;
  bool is_done = false;
  Completion completion = {};
  template <class F>
  static void fields(F& f) {
    f("request", &Part::request)("attempt", &Part::attempt)("is_done", &Part::is_done)(
        "completion", &Part::completion);
  }
};

/// A request for samples that has no answer yet.
struct OpenSample {
  TenantSlot tenant;
  std::string sampler;
  AdapterId adapter;        // none: the moving key
  GenerateRequest request;  // of the first part; the others differ in their seeds
  std::vector<Part> parts;
  bool wants_prompt_logprobs = false;  // in the answer
  int64_t num_left = 0;                // parts without a completion
  int64_t num_prompt_logprobs = 0;     // of the last tokens; 0: all
  Time deadline;
  template <class F>
  static void fields(F& f) {
    using O = OpenSample;
    f("tenant", &O::tenant)("sampler", &O::sampler)("adapter", &O::adapter)("request", &O::request)(
        "parts", &O::parts)("wants_prompt_logprobs", &O::wants_prompt_logprobs)(
        "num_left", &O::num_left)("num_prompt_logprobs", &O::num_prompt_logprobs)("deadline",
                                                                                  &O::deadline);
  }
};

struct PartRef {
  uint64_t sample = 0;
  uint32_t index = 0;
  friend auto operator<=>(const PartRef&, const PartRef&) = default;
  template <class F>
  static void fields(F& f) {
    f("sample", &PartRef::sample)("index", &PartRef::index);
  }
};

/// A client that waits for the answer of a request.
struct Poll {
  uint64_t future = 0;
  std::string request_id;
  Time deadline;
  template <class F>
  static void fields(F& f) {
    f("future", &Poll::future)("request_id", &Poll::request_id)("deadline", &Poll::deadline);
  }
};

/// A client that waits for a sampler of the base model.
struct BaseWait {
  std::string session;
  int64_t sampler_seq = 0;
  std::string base_model;
  std::string request_id;
  TenantSlot tenant;
  Time deadline;
  template <class F>
  static void fields(F& f) {
    using B = BaseWait;
    f("session", &B::session)("sampler_seq", &B::sampler_seq)("base_model", &B::base_model)(
        "request_id", &B::request_id)("tenant", &B::tenant)("deadline", &B::deadline);
  }
};

struct TenantState : SentRequests {
  std::string model;                                  // the open one; empty: none
  std::deque<uint64_t> queue;                         // jobs whose turn has come
  uint64_t running = 0;                               // the job at the trainer; 0: none
  PolicyVersion live;                                 // of the moving key
  std::map<AdapterId, PolicyVersion> live_snapshots;  // of `snapshots` and of the running job
  std::map<AdapterId, Snapshot> snapshots;
  std::deque<PartRef> waiting;                 // parts; at most max_waiting, and those sent again
  int64_t num_updates = 0;                     // of its weights, as the trainer last said
  std::map<PolicyVersion, int64_t> published;  // updates of versions of the moving key, the newest
  SampledRuns sampled;
  DataAges ages;  // of the passes since the last update
  TokenBudget budget;
  template <class F>
  static void fields(F& f) {
    using T = TenantState;
    f("model", &T::model)("queue", &T::queue)("running", &T::running)("live", &T::live)(
        "live_snapshots", &T::live_snapshots)("snapshots", &T::snapshots)(
        "num_inflight", &T::num_inflight)("waiting", &T::waiting)("answered", &T::answered)(
        "to_cancel", &T::to_cancel)("cancelled", &T::cancelled)("num_updates", &T::num_updates)(
        "published", &T::published)("sampled", &T::sampled)("ages", &T::ages)("budget", &T::budget);
  }
};

enum class AskedKind : uint8_t { kAccept, kClosed, kReply };

/// A call to the listener.
struct Asked {
  AskedKind kind = AskedKind::kAccept;
  uint64_t future = 0;  // whose answer the reply has; 0: none
  template <class F>
  static void fields(F& f) {
    f("kind", &Asked::kind)("future", &Asked::future);
  }
};

}  // namespace primerl::tinker
