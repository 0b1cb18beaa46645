/// The answers of the Tinker wire: JSON, and protobuf for losses and samples
/// (docs/design/tinker.md). Pure, any thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "actors/tinker/loss_request.h"
#include "actors/tinker/names.h"
#include "graph/base/result.h"
#include "kernels/engine/finish.h"
#include "kernels/train/loss_batch.h"

namespace primerl::tinker {

inline constexpr std::string_view kJsonType = "application/json";
inline constexpr std::string_view kProtobufType = "application/x-protobuf";

/// The status of a request that is refused at once. The SDK repeats 408, 409, 429 and 5xx, so a
/// body that contradicts an earlier one (kExists) is 422.
int32_t http_status(const Error& error);
/// Its body.
std::string refusal(const Error& error);
/// The answer to `retrieve_future`, with status 200, for a request that failed.
std::string failed_answer(const Error& error);

enum class QueueState : uint8_t { kActive, kPausedCapacity, kPausedRateLimit };
/// The answer to `retrieve_future` while the request has none.
std::string try_again_answer(uint64_t request, QueueState state);
/// The answer to a request that has a future.
std::string future_answer(uint64_t request);
/// The same for `asample`: SDK 0.29 and later asserts one id for each sequence.
std::string sample_future_answer(uint64_t request, int32_t num_samples);

struct ServedModel {
  std::string name;
  int64_t context_tokens = 0;
};

/// What one tenant of a client may have. Fields beyond the wire's: the SDK passes over them.
struct ServedClient {
  std::string tenant;
  std::string open_model;  // empty: none
  int64_t rank = 0;
  int64_t snapshots_max = 0;
  int64_t samples_max = 0;  // at once
};

struct ModelInfo {
  std::string model;
  std::string base_model;
  std::string arch;
  std::string tokenizer;  // a name or a folder, for AutoTokenizer
  int32_t rank = 0;
};

std::string client_config_answer();
std::string dynamic_config_answer();
std::string session_answer(std::string_view session);
std::string empty_answer();
std::string telemetry_answer();
std::string health_answer();
std::string capabilities_answer(const std::vector<ServedModel>& models,
                                const std::vector<ServedClient>& clients);
std::string model_answer(std::string_view model);
std::string info_answer(const ModelInfo& info);
/// Numbers that are not finite are left out: JSON has none, and the client reads no null.
std::string optim_answer(const std::map<std::string, double>& metrics);
std::string saved_answer(const SavedWeights& saved);
std::string sampler_answer(std::string_view sampler);
std::string loaded_answer(const SavedWeights& from, std::string_view model);
std::string sampler_info_answer(std::string_view sampler, std::string_view base_model,
                                std::string_view path);

/// ForwardBackwardOutput: log-probabilities in the shape of the targets, 0 in cells that have none,
/// and sums. A name of a metric has one colon, as the client demands.
/// `ages` are those of the data, in updates; -1: not known; empty: none is known. If any is known,
/// each datum has a further output, "updates_behind".
std::string loss_answer(const LossResult& result, const std::vector<TargetShape>& shapes,
                        const std::vector<int64_t>& ages = {});

/// The likeliest tokens at each position, by rows; a slot without a token has id 0 and -99999.
struct TopTable {
  uint32_t num_rows = 0;
  uint32_t num_columns = 0;
  std::vector<int32_t> ids = {};
  std::vector<float> logprobs = {};
};

struct SampledTokens {
  bool ended_by_length = false;
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  TopTable top = {};
  std::vector<VersionSpan> spans = {};  // the versions that made the tokens
};

/// Fields beyond the wire's: a client of the SDK passes over them.
inline constexpr int32_t kSpanField = 1000;  // of a SampledSequence, repeated {version = 1,
                                             // begin = 2, end = 3}

struct SampleResult {
  std::vector<SampledTokens> sequences;
  std::vector<float> prompt_logprobs = {};  // NaN: none, as at the first token; empty: not asked
  TopTable prompt_top = {};
  int32_t num_cached = 0;  // tokens of the prompt
};

/// SampleResponse.
std::string sample_answer(const SampleResult& result);

}  // namespace primerl::tinker
