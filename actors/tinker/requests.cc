#include "actors/tinker/requests.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <utility>

#include "actors/tinker/body.h"

namespace primerl::tinker {
namespace {

constexpr std::string_view kApiPrefix = "/api/v1/";
constexpr int32_t kSdkMinorMin = 25;  // protobuf is mandatory from 0.25 on
constexpr int64_t kInt64Min = std::numeric_limits<int64_t>::min();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

struct RouteRow {
  std::string_view method, path;
  Route route;
};

constexpr std::array kRoutes = {
    RouteRow{"POST", "client/config", Route::kClientConfig},
    RouteRow{"POST", "client/dynamic_config", Route::kDynamicConfig},
    RouteRow{"POST", "create_session", Route::kCreateSession},
    RouteRow{"POST", "session_heartbeat", Route::kHeartbeat},
    RouteRow{"POST", "telemetry", Route::kTelemetry},
    RouteRow{"POST", "create_model", Route::kCreateModel},
    RouteRow{"POST", "unload_model", Route::kUnloadModel},
    RouteRow{"POST", "get_info", Route::kGetInfo},
    RouteRow{"POST", "forward_backward", Route::kForwardBackward},
    RouteRow{"POST", "optim_step", Route::kOptimStep},
    RouteRow{"POST", "save_weights", Route::kSaveWeights},
    RouteRow{"POST", "save_weights_for_sampler", Route::kSaveForSampler},
    RouteRow{"POST", "load_weights", Route::kLoadWeights},
    RouteRow{"POST", "create_sampling_session", Route::kCreateSampler},
    RouteRow{"POST", "join_sampling_session", Route::kJoinSampler},
    RouteRow{"POST", "asample", Route::kSample},
    RouteRow{"POST", "retrieve_future", Route::kRetrieveFuture},
    RouteRow{"POST", "cancel_future", Route::kCancelFuture},
    RouteRow{"GET", "get_server_capabilities", Route::kCapabilities},
    RouteRow{"GET", "healthz", Route::kHealth},
    RouteRow{"GET", "training_runs", Route::kModels},
    RouteRow{"GET", "checkpoints", Route::kAllWeights},
    RouteRow{"POST", "weights_info", Route::kWeightsInfo},
    RouteRow{"GET", "sessions", Route::kSessions},
};

/// Paths with a name of one part between their ends.
struct NamedRouteRow {
  std::string_view method, before, after;
  Route route;
};

constexpr std::array kNamedRoutes = {
    NamedRouteRow{"POST", "sessions/", "/finish", Route::kFinishSession},
    NamedRouteRow{"GET", "sessions/", "", Route::kSession},
    NamedRouteRow{"GET", "samplers/", "", Route::kGetSampler},
    NamedRouteRow{"GET", "training_runs/", "/checkpoints", Route::kModelWeights},
    NamedRouteRow{"GET", "training_runs/", "", Route::kModel},
};

/// "training_runs/MODEL/checkpoints/weights/NAME", and after it `after`.
constexpr std::string_view kModelsPrefix = "training_runs/";
constexpr std::string_view kWeightsOfModel = "/checkpoints/";

struct WeightsRouteRow {
  std::string_view method, after;
  Route route;
};

constexpr std::array kWeightsRoutes = {
    WeightsRouteRow{"DELETE", "", Route::kDeleteWeights},
    WeightsRouteRow{"PUT", "/ttl", Route::kExpireWeights},
    WeightsRouteRow{"POST", "/publish", Route::kPublishWeights},
    WeightsRouteRow{"DELETE", "/publish", Route::kPublishWeights},
};

/// The middle of a path with a name in it; empty: it is another path.
std::string_view name_between(std::string_view path, std::string_view before,
                              std::string_view after) {
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) ||
      !path.ends_with(after))
    return {};
  const auto name = path.substr(before.size(), path.size() - before.size() - after.size());
  return name.find('/') == name.npos ? name : std::string_view();
}

/// The path of saved weights, "tinker://MODEL/weights/NAME"; empty: it is another route.
std::string weights_between(std::string_view path, std::string_view after) {
  if (!path.starts_with(kModelsPrefix) || !path.ends_with(after)) return {};
  path = path.substr(kModelsPrefix.size(), path.size() - kModelsPrefix.size() - after.size());
  const size_t middle = path.find(kWeightsOfModel);
  if (middle == path.npos) return {};
  const auto saved = read_path(fmt::format("tinker://{}/{}", path.substr(0, middle),
                                           path.substr(middle + kWeightsOfModel.size())));
  return saved.ok() ? to_path(*saved) : std::string();
}

Status check_optimizer(const Body& body) {
  ASSIGN_OR_RETURN(const auto config, body.object("optimizer_config"));
  if (!config) return ok();
  ASSIGN_OR_RETURN(const std::string type, config->text("type"));
  if (type == "adamw") return ok();
  return error(Code::kInvalid, "unknown optimizer '{}'", type.substr(0, kNameBytesMax))
      .note("optimizers: adamw");
}

struct ModelRequest {
  std::string model;
  int64_t seq = 0;
};

Result<ModelRequest> read_model_request(const Body& body) {
  ModelRequest read;
  ASSIGN_OR_RETURN(read.model, body.needed_name("model_id"));
  ASSIGN_OR_RETURN(read.seq, body.needed_integer("seq_id", 1, kSeqMax));
  return read;
}

Result<std::string> read_saved_name(const Body& body) {
  ASSIGN_OR_RETURN(std::string name, body.text("path"));
  if (body.find("path") != nullptr) RETURN_IF_ERROR(check_saved_name(name));
  return name;
}

Result<int64_t> read_ttl(const Body& body) {
  ASSIGN_OR_RETURN(const auto seconds, body.integer("ttl_seconds", 1, kInt64Max));
  return seconds.value_or(0);
}

/// The member must be missing, null, false or 0: this server has nothing of the kind.
Status refuse_member(const Body& body, std::string_view key) {
  const Json* const found = body.find(key);
  if (found == nullptr || (found->is_bool() && !found->as_bool()) ||
      (found->is_integer() && found->as_int() == 0))
    return ok();
  return error(Code::kInvalid, "this server has no '{}'", key).note("leave it out");
}

Status read_ids(std::string_view key, const Json& value, size_t most, std::vector<int32_t>& ids) {
  if (!value.is_array())
    return error(Code::kInvalid, "'{}' is {}, not an array of token ids", key, value.kind());
  for (const Json& each : value.as_array()) {
    if (!each.is_integer() || each.as_int() < 0 || each.as_int() > INT32_MAX)
      return error(Code::kInvalid, "'{}' has an entry at {} that is not a token id", key,
                   ids.size());
    if (ids.size() == most)
      return error(Code::kInvalid, "'{}' has more than {} token ids", key, most);
    ids.push_back(static_cast<int32_t>(each.as_int()));
  }
  return ok();
}

Status read_prompt(const Body& body, Sample& sample) {
  ASSIGN_OR_RETURN(const auto prompt, body.object("prompt"));
  const Json* const chunks = prompt ? prompt->find("chunks") : nullptr;
  if (chunks == nullptr || !chunks->is_array())
    return error(Code::kInvalid, "'prompt' has no array 'chunks'");
  for (const Json& each : chunks->as_array()) {
    const Json* const type = each.find("type");
    if (type != nullptr && type->is_string() && type->as_string() != "encoded_text")
      return error(Code::kInvalid, "'prompt' has a chunk '{}', this server reads encoded_text",
                   type->as_string().substr(0, kNameBytesMax));
    const Json* const tokens = each.find("tokens");
    if (tokens == nullptr) return error(Code::kInvalid, "'prompt' has a chunk without 'tokens'");
    RETURN_IF_ERROR(read_ids("tokens", *tokens, kPromptTokensMax, sample.prompt));
  }
  if (sample.prompt.empty()) return error(Code::kInvalid, "'prompt' has no token");
  return ok();
}

/// A text, texts, or token ids; [] is no end at all.
Status read_wire_stops(const Body& params, Sample& sample) {
  const Json* const stop = params.find("stop");
  if (stop == nullptr) return ok();
  if (stop->is_string()) {
    sample.stops.push_back(stop->as_string());
    return ok();
  }
  if (!stop->is_array())
    return error(Code::kInvalid, "'stop' is {}, not a text, texts or token ids", stop->kind());
  const auto& entries = stop->as_array();
  if (entries.size() > kStopsMax)
    return error(Code::kInvalid, "'stop' has {} entries, at most {} are allowed", entries.size(),
                 kStopsMax);
  sample.ignores_eos = entries.empty();
  if (!entries.empty() && !entries.front().is_string())
    return read_ids("stop", *stop, kStopsMax, sample.stop_ids);
  for (const Json& each : entries) {
    if (!each.is_string())
      return error(Code::kInvalid, "'stop' has texts and {}: use one kind", each.kind());
    sample.stops.push_back(each.as_string());
  }
  return ok();
}

Status read_sampling(const Body& body, Sample& sample) {
  ASSIGN_OR_RETURN(const auto params, body.object("sampling_params"));
  if (!params) return error(Code::kInvalid, "the request has no 'sampling_params'");
  ASSIGN_OR_RETURN(const auto most, params->integer("max_tokens", 1, INT32_MAX));
  if (most) sample.max_tokens = static_cast<int32_t>(*most);
  ASSIGN_OR_RETURN(sample.seed, params->integer("seed", kInt64Min, kInt64Max));
  ASSIGN_OR_RETURN(sample.temperature, params->number("temperature", 1));
  ASSIGN_OR_RETURN(sample.top_p, params->number("top_p", 1));
  ASSIGN_OR_RETURN(const auto top_k, params->integer("top_k", -1, INT32_MAX));
  sample.top_k = static_cast<int32_t>(std::max<int64_t>(top_k.value_or(0), 0));
  if (sample.temperature < 0)
    return error(Code::kInvalid, "'temperature' is {}, it must be 0 or above", sample.temperature);
  if (!(sample.top_p > 0 && sample.top_p <= 1))
    return error(Code::kInvalid, "'top_p' is {}, not in (0, 1]", sample.top_p);
  return read_wire_stops(*params, sample);
}

Status read_logprob_wishes(const Body& body, Sample& sample) {
  ASSIGN_OR_RETURN(sample.wants_prompt_logprobs, body.boolean("prompt_logprobs", false));
  ASSIGN_OR_RETURN(const auto prompt_top,
                   body.integer("topk_prompt_logprobs", 0, kTopLogprobsWireMax));
  ASSIGN_OR_RETURN(const auto sample_top,
                   body.integer("topk_sample_logprobs", 0, kTopLogprobsWireMax));
  sample.num_prompt_top = static_cast<int32_t>(prompt_top.value_or(0));
  sample.num_sample_top = static_cast<int32_t>(sample_top.value_or(0));
  const int64_t num_scored = std::ssize(sample.prompt) - 1;
  if (body.find("prompt_logprobs_last_n") == nullptr) return ok();
  if (!sample.wants_prompt_logprobs)
    return error(Code::kInvalid, "'prompt_logprobs_last_n' needs 'prompt_logprobs'");
  ASSIGN_OR_RETURN(sample.last_prompt_logprobs,
                   body.integer("prompt_logprobs_last_n", 1, num_scored));
  return ok();
}

}  // namespace

Result<RouteMatch> read_route(std::string_view method, std::string_view path) {
  if (path.starts_with(kApiPrefix)) {
    const auto rest = path.substr(kApiPrefix.size());
    for (const RouteRow& row : kRoutes)
      if (row.method == method && row.path == rest) return RouteMatch{row.route};
    for (const NamedRouteRow& row : kNamedRoutes)
      if (const auto name = name_between(rest, row.before, row.after);
          row.method == method && !name.empty())
        return RouteMatch{row.route, std::string(name)};
    for (const WeightsRouteRow& row : kWeightsRoutes)
      if (const std::string saved = weights_between(rest, row.after);
          row.method == method && !saved.empty())
        return RouteMatch{row.route, saved};
  }
  return error(Code::kNotFound, "no route {} {}", method, path.substr(0, kNameBytesMax));
}

Result<SdkVersion> read_sdk_version(std::string_view version) {
  SdkVersion read;
  const char* const end = version.data() + version.size();
  const auto major = std::from_chars(version.data(), end, read.major);
  if (major.ec != std::errc{} || major.ptr == end || *major.ptr != '.' ||
      std::from_chars(major.ptr + 1, end, read.minor).ec != std::errc{})
    return error(Code::kInvalid, "'sdk_version' is not a version");
  if (read.major == 0 && read.minor < kSdkMinorMin)
    return error(Code::kInvalid, "tinker {} is too old", version.substr(0, kNameBytesMax))
        .note("install tinker 0.25 to 0.38");
  return read;
}

Result<CreateSession> read_create_session(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  CreateSession read;
  ASSIGN_OR_RETURN(read.sdk_version, body.needed_name("sdk_version"));
  RETURN_IF_ERROR(read_sdk_version(read.sdk_version));
  if (body.find("project_id") != nullptr) {
    ASSIGN_OR_RETURN(read.project, body.needed_name("project_id"));
  }
  return read;
}

Result<CreateModel> read_create_model(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  CreateModel read;
  ASSIGN_OR_RETURN(read.session, body.needed_name("session_id"));
  ASSIGN_OR_RETURN(read.model_seq, body.needed_integer("model_seq_id", 0, kSeqMax));
  ASSIGN_OR_RETURN(read.base_model, body.needed_name("base_model"));
  RETURN_IF_ERROR(check_optimizer(body));
  ASSIGN_OR_RETURN(const auto lora, body.object("lora_config"));
  if (!lora) return error(Code::kInvalid, "the request has no 'lora_config'");
  ASSIGN_OR_RETURN(const int64_t rank, lora->needed_integer("rank", 1, kRankMax));
  read.rank = static_cast<int32_t>(rank);
  ASSIGN_OR_RETURN(read.seed, lora->integer("seed", kInt64Min, kInt64Max));
  ASSIGN_OR_RETURN(read.trains_unembed, lora->boolean("train_unembed", true));
  ASSIGN_OR_RETURN(read.trains_mlp, lora->boolean("train_mlp", true));
  ASSIGN_OR_RETURN(read.trains_attention, lora->boolean("train_attn", true));
  if (!read.trains_unembed && !read.trains_mlp && !read.trains_attention)
    return error(Code::kInvalid, "'lora_config' trains nothing")
        .note("set train_unembed, train_mlp or train_attn");
  return read;
}

Result<OptimStep> read_optim_step(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  ASSIGN_OR_RETURN(const ModelRequest model, read_model_request(body));
  OptimStep read{model.model, model.seq, {}};
  if (body.find("optimizer_params") != nullptr)
    return error(Code::kInvalid,
                 "the model's optimizer is adamw, which reads no "
                 "'optimizer_params'");
  ASSIGN_OR_RETURN(const auto adam, body.object("adam_params"));
  if (!adam) return error(Code::kInvalid, "the request has no 'adam_params'");
  for (const auto& [key, target] :
       {std::pair{"learning_rate", &AdamNumbers::lr}, std::pair{"beta1", &AdamNumbers::beta1},
        std::pair{"beta2", &AdamNumbers::beta2}, std::pair{"eps", &AdamNumbers::epsilon},
        std::pair{"weight_decay", &AdamNumbers::weight_decay},
        std::pair{"grad_clip_norm", &AdamNumbers::max_norm}}) {
    ASSIGN_OR_RETURN(read.adam.*target, adam->number(key, read.adam.*target));
  }
  RETURN_IF_ERROR(validate(read.adam));
  return read;
}

Result<SaveWeights> read_save_weights(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  ASSIGN_OR_RETURN(const ModelRequest model, read_model_request(body));
  SaveWeights read{model.model, model.seq};
  ASSIGN_OR_RETURN(read.name, read_saved_name(body));
  ASSIGN_OR_RETURN(read.ttl_seconds, read_ttl(body));
  ASSIGN_OR_RETURN(read.overwrites, body.boolean("overwrite", false));
  return read;
}

Result<SaveForSampler> read_save_for_sampler(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  ASSIGN_OR_RETURN(const ModelRequest model, read_model_request(body));
  SaveForSampler read{model.model, model.seq};
  ASSIGN_OR_RETURN(read.name, read_saved_name(body));
  ASSIGN_OR_RETURN(read.ttl_seconds, read_ttl(body));
  ASSIGN_OR_RETURN(read.sampler_seq, body.integer("sampling_session_seq_id", 0, kSeqMax));
  if (read.name.empty() == !read.sampler_seq.has_value())
    return error(Code::kInvalid, "the request needs 'path' or 'sampling_session_seq_id', not both");
  ASSIGN_OR_RETURN(const std::string kind, body.text("kind"));  // missing before SDK 0.30
  if (!kind.empty() && kind != "snapshot" && kind != "inflight")
    return error(Code::kInvalid, "unknown 'kind' '{}'", kind.substr(0, kNameBytesMax))
        .note("kinds: snapshot, inflight");
  read.is_inflight = kind == "inflight";
  return read;
}

Result<LoadWeights> read_load_weights(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  LoadWeights read;
  ASSIGN_OR_RETURN(const std::string path, body.needed_name("path"));
  ASSIGN_OR_RETURN(read.from, read_path(path));
  ASSIGN_OR_RETURN(read.loads_optimizer, body.boolean("optimizer", false));
  RETURN_IF_ERROR(check_optimizer(body));
  if ((body.find("model_id") == nullptr) == (body.find("session_id") == nullptr))
    return error(Code::kInvalid, "the request needs 'model_id' or 'session_id', not both");
  if (body.find("model_id") != nullptr) {
    ASSIGN_OR_RETURN(const ModelRequest model, read_model_request(body));
    read.model = model.model;
    read.seq = model.seq;
    return read;
  }
  ASSIGN_OR_RETURN(read.session, body.needed_name("session_id"));
  ASSIGN_OR_RETURN(read.model_seq, body.needed_integer("model_seq_id", 0, kSeqMax));
  return read;
}

Result<CreateSampler> read_create_sampler(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  CreateSampler read;
  ASSIGN_OR_RETURN(read.session, body.needed_name("session_id"));
  ASSIGN_OR_RETURN(read.sampler_seq, body.needed_integer("sampling_session_seq_id", 0, kSeqMax));
  if (body.find("model_path") != nullptr) {
    ASSIGN_OR_RETURN(const std::string path, body.needed_name("model_path"));
    ASSIGN_OR_RETURN(read.from, read_path(path));
  }
  if (body.find("base_model") != nullptr) {
    ASSIGN_OR_RETURN(read.base_model, body.needed_name("base_model"));
  } else if (!read.from) {
    return error(Code::kInvalid, "the request needs 'base_model' or 'model_path'");
  }
  return read;
}

Result<ExpireWeights> read_expire_weights(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  ASSIGN_OR_RETURN(const auto seconds, body.integer("ttl_seconds", 1, kInt64Max));
  return ExpireWeights{seconds};
}

Result<Sample> read_sample(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  Sample read;
  ASSIGN_OR_RETURN(read.sampler, body.needed_name("sampling_session_id"));
  ASSIGN_OR_RETURN(read.seq, body.needed_integer("seq_id", 0, kInt64Max));
  ASSIGN_OR_RETURN(const auto count, body.integer("num_samples", 1, kSampleCountMax));
  read.num_samples = static_cast<int32_t>(count.value_or(1));
  for (const char* key : {"target_prompt_logprobs", "prompt_alt_tokens_k", "record_stability_info"})
    RETURN_IF_ERROR(refuse_member(body, key));
  RETURN_IF_ERROR(read_prompt(body, read));
  RETURN_IF_ERROR(read_sampling(body, read));
  RETURN_IF_ERROR(read_logprob_wishes(body, read));
  return read;
}

Result<RetrieveFuture> read_retrieve_future(std::string_view text) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  ASSIGN_OR_RETURN(const std::string name, body.needed_name("request_id"));
  ASSIGN_OR_RETURN(const uint64_t request, read_request_name(name));
  return RetrieveFuture{request};
}

Result<std::string> read_one_name(std::string_view text, std::string_view key) {
  ASSIGN_OR_RETURN(const Body body, Body::read(text));
  return body.needed_name(key);
}

}  // namespace primerl::tinker
