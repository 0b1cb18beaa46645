/// The requests of the Tinker wire (SDK 0.25 to 0.38) and their JSON bodies as structs
/// (docs/design/tinker.md). `forward_backward` is protobuf: loss_request.h. Pure, any thread.
///
/// Members of a body that this server does not know are passed over; known ones are judged
/// strictly, and null is a member that is left out, as in the SDK.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/tinker/names.h"
#include "graph/base/json.h"
#include "graph/base/result.h"
#include "kernels/train/loss_batch.h"

namespace primerl::tinker {

inline constexpr int32_t kRankMax = 4096;
inline constexpr int32_t kSampleCountMax = 128;  // `num_samples`
inline constexpr size_t kPromptTokensMax = size_t{1} << 24;
inline constexpr int32_t kTopLogprobsWireMax = 1024;
inline constexpr size_t kStopsMax = 64;

enum class Route : uint8_t {
  kClientConfig,
  kDynamicConfig,
  kCreateSession,
  kHeartbeat,
  kFinishSession,  // `name` is the session
  kTelemetry,
  kCreateModel,
  kUnloadModel,
  kGetInfo,
  kForwardBackward,
  kOptimStep,
  kSaveWeights,
  kSaveForSampler,
  kLoadWeights,
  kCreateSampler,
  kGetSampler,  // `name` is the sampler
  kJoinSampler,
  kSample,
  kRetrieveFuture,
  kCancelFuture,
  kCapabilities,
  kHealth,
  kModels,          // "training_runs", as the REST interface calls models
  kModel,           // `name` is the model
  kModelWeights,    // `name` is the model
  kDeleteWeights,   // `name` is the path of the weights
  kExpireWeights,   // the same
  kPublishWeights,  // to everyone, which this server does not
  kAllWeights,
  kWeightsInfo,
  kSessions,
  kSession,  // `name` is the session
};

struct RouteMatch {
  Route route = Route::kHealth;
  std::string name = {};  // from the path
};

/// `path` without its query. kNotFound for a path that this server lacks.
Result<RouteMatch> read_route(std::string_view method, std::string_view path);

/// The SDK's version as (major, minor): what dialects depend on. Refuses versions before 0.25.
struct SdkVersion {
  int32_t major = 0;
  int32_t minor = 0;
};
Result<SdkVersion> read_sdk_version(std::string_view version);

struct CreateSession {
  std::string sdk_version;
  std::string project;  // `project_id`: names the tenant where keys do not; empty: none
};

struct CreateModel {
  std::string session;
  int64_t model_seq = 0;
  std::string base_model;
  int32_t rank = 0;
  std::optional<int64_t> seed;
  bool trains_unembed = true;
  bool trains_mlp = true;
  bool trains_attention = true;
};

struct OptimStep {
  std::string model;
  int64_t seq = 0;
  AdamNumbers adam;
};

struct SaveWeights {
  std::string model;
  int64_t seq = 0;
  std::string name = {};    // empty: of the server's choice
  int64_t ttl_seconds = 0;  // 0: never
  bool overwrites = false;
};

struct SaveForSampler {
  std::string model;
  int64_t seq = 0;
  std::string name = {};                    // empty: the answer is a sampler
  std::optional<int64_t> sampler_seq = {};  // with no name
  bool is_inflight = false;                 // else a snapshot
  int64_t ttl_seconds = 0;
};

/// Into a model that exists (`model`, `seq`), or as the first request of a new one.
struct LoadWeights {
  SavedWeights from;
  bool loads_optimizer = false;
  std::string model;  // empty: a new one
  int64_t seq = 0;
  std::string session;
  int64_t model_seq = 0;
};

/// The new end of the weights that kExpireWeights names; none: never.
struct ExpireWeights {
  std::optional<int64_t> ttl_seconds;
};

struct CreateSampler {
  std::string session;
  int64_t sampler_seq = 0;
  std::string base_model;            // empty: that of the path
  std::optional<SavedWeights> from;  // none: the base model
};

struct Sample {
  std::string sampler;
  int64_t seq = 0;  // of the sampler; clones of a client count from multiples of 10^9
  std::vector<int32_t> prompt;
  int32_t num_samples = 1;
  std::optional<int32_t> max_tokens;  // none: as many as fit
  std::optional<int64_t> seed;
  double temperature = 1;
  int32_t top_k = 0;  // 0: off
  double top_p = 1;
  std::vector<std::string> stops;
  std::vector<int32_t> stop_ids;
  bool ignores_eos = false;  // `stop` is []: nothing ends a sequence but max_tokens
  bool wants_prompt_logprobs = false;
  std::optional<int64_t> last_prompt_logprobs;  // only those of the last tokens
  int32_t num_prompt_top = 0;
  int32_t num_sample_top = 0;
};

struct RetrieveFuture {
  uint64_t request = 0;
};

Result<CreateSession> read_create_session(std::string_view body);
Result<CreateModel> read_create_model(std::string_view body);
Result<OptimStep> read_optim_step(std::string_view body);
Result<SaveWeights> read_save_weights(std::string_view body);
Result<SaveForSampler> read_save_for_sampler(std::string_view body);
Result<LoadWeights> read_load_weights(std::string_view body);
Result<CreateSampler> read_create_sampler(std::string_view body);
Result<ExpireWeights> read_expire_weights(std::string_view body);
Result<Sample> read_sample(std::string_view body);
/// Also `cancel_future`.
Result<RetrieveFuture> read_retrieve_future(std::string_view body);
/// The one member of `session_heartbeat` (session_id), `get_info` and `unload_model` (model_id),
/// `client/config` (sdk_version), `weights_info` (tinker_path), `join_sampling_session`
/// (sampling_session_id).
Result<std::string> read_one_name(std::string_view body, std::string_view key);

}  // namespace primerl::tinker
