// Reading the bodies of requests.
#include <algorithm>
#include <cmath>
#include <utility>

#include "actors/gateway/wire.h"

namespace primerl {
namespace {

using WireField = Json::Member;

Result<Json> object_of(std::string_view body) {
  if (body.empty()) return error(Code::kInvalid, "the request has no body");
  ASSIGN_OR_RETURN(Json json, parse_json(body, "the body"));
  if (!json.is_object()) return error(Code::kInvalid, "the body is {}, not an object", json.kind());
  return json;
}

Result<int64_t> int_of(const WireField& member, int64_t least, int64_t most) {
  if (!member.second.is_integer())
    return error(Code::kInvalid, "'{}' is {}, not an integer", member.first, member.second.kind());
  const int64_t value = member.second.as_int();
  if (value < least || value > most)
    return error(Code::kInvalid, "'{}' is {}, not from {} to {}", member.first, value, least, most);
  return value;
}

/// The likeliest tokens that a reply shall have at each position.
Result<int32_t> num_top_of(const WireField& member) {
  auto num_top = int_of(member, 0, kTopLogprobsMax);
  if (!num_top.ok())
    return std::move(num_top).error().note(
        fmt::format("a reply has at most the {} likeliest tokens of a position, as from OpenAI and "
                    "vLLM's default 'max_logprobs'",
                    kTopLogprobsMax));
  return static_cast<int32_t>(*num_top);
}

Result<double> double_of(const WireField& member) {
  if (!member.second.is_number())
    return error(Code::kInvalid, "'{}' is {}, not a number", member.first, member.second.kind());
  return member.second.as_double();
}

Result<bool> bool_of(const WireField& member) {
  if (!member.second.is_bool())
    return error(Code::kInvalid, "'{}' is {}, not true or false", member.first,
                 member.second.kind());
  return member.second.as_bool();
}

Result<std::string> string_of(const WireField& member) {
  if (!member.second.is_string())
    return error(Code::kInvalid, "'{}' is {}, not a string", member.first, member.second.kind());
  return member.second.as_string();
}

Result<std::vector<int32_t>> ids_of(const WireField& member, size_t count_max) {
  if (!member.second.is_array())
    return error(Code::kInvalid, "'{}' is {}, not an array of token ids", member.first,
                 member.second.kind());
  const auto& array = member.second.as_array();
  if (array.size() > count_max)
    return error(Code::kInvalid, "'{}' has {} token ids, at most {} are allowed", member.first,
                 array.size(), count_max);
  std::vector<int32_t> ids;
  ids.reserve(array.size());
  for (const Json& each : array) {
    if (!each.is_integer() || each.as_int() < 0 || each.as_int() > INT32_MAX)
      return error(Code::kInvalid, "'{}' has {} at position {}, not a token id", member.first,
                   each.is_integer() ? each.dump() : std::string(each.kind()), ids.size());
    ids.push_back(static_cast<int32_t>(each.as_int()));
  }
  return ids;
}

Result<std::vector<std::string>> stops_of(const WireField& member) {
  std::vector<std::string> stops;
  if (member.second.is_string()) {
    stops.push_back(member.second.as_string());
  } else if (member.second.is_array()) {
    for (const Json& each : member.second.as_array()) {
      if (!each.is_string())
        return error(Code::kInvalid, "'stop' has {}, not a string", each.kind());
      stops.push_back(each.as_string());
    }
  } else {
    return error(Code::kInvalid, "'stop' is {}, not a string or an array of strings",
                 member.second.kind());
  }
  return stops;
}

Result<std::vector<TokenBias>> biases_of(const WireField& member) {
  if (!member.second.is_object())
    return error(Code::kInvalid, "'logit_bias' is {}, not an object", member.second.kind());
  std::vector<TokenBias> biases;
  for (const WireField& each : member.second.as_object()) {
    const auto id = parse_json(each.first, "'logit_bias'");
    if (!id.ok() || !id->is_integer() || id->as_int() < 0 || id->as_int() > INT32_MAX)
      return error(Code::kInvalid, "'logit_bias' has the key '{}', not a token id", each.first);
    ASSIGN_OR_RETURN(const double bias, double_of({"logit_bias", each.second}));
    biases.push_back({static_cast<int32_t>(id->as_int()), bias});
  }
  std::ranges::sort(biases, {}, &TokenBias::token);
  return biases;
}

enum class Use : uint8_t { kUsed, kUnknown };

/// Numbers that change the distribution.
Result<Use> read_distribution(const WireField& member, SamplingParams& sampling) {
  for (const auto& [name, target] :
       {std::pair("temperature", &SamplingParams::temperature),
        std::pair("top_p", &SamplingParams::top_p), std::pair("min_p", &SamplingParams::min_p),
        std::pair("repetition_penalty", &SamplingParams::repetition_penalty),
        std::pair("frequency_penalty", &SamplingParams::frequency_penalty),
        std::pair("presence_penalty", &SamplingParams::presence_penalty)}) {
    if (member.first != name) continue;
    ASSIGN_OR_RETURN(sampling.*target, double_of(member));
    return Use::kUsed;
  }
  if (member.first == "top_k") {
    // -1 and 0 are "off" in vLLM.
    ASSIGN_OR_RETURN(const int64_t top_k, int_of(member, -1, INT32_MAX));
    sampling.top_k = static_cast<int32_t>(std::max<int64_t>(top_k, 0));
    return Use::kUsed;
  }
  if (member.first == "logit_bias") {
    ASSIGN_OR_RETURN(sampling.logit_bias, biases_of(member));
    return Use::kUsed;
  }
  return Use::kUnknown;
}

/// The options that end a sequence.
Result<Use> read_ends(const WireField& member, GenerateCall& call) {
  SamplingParams& sampling = call.sampling;
  const std::string& key = member.first;
  if (key == "max_tokens" || key == "max_completion_tokens") {
    ASSIGN_OR_RETURN(const int64_t most, int_of(member, 1, INT32_MAX));
    sampling.max_tokens = static_cast<int32_t>(most);
    call.has_max_tokens = true;
  } else if (key == "min_tokens") {
    ASSIGN_OR_RETURN(const int64_t least, int_of(member, 0, INT32_MAX));
    sampling.min_tokens = static_cast<int32_t>(least);
  } else if (key == "ignore_eos") {
    ASSIGN_OR_RETURN(sampling.ignore_eos, bool_of(member));
  } else if (key == "stop_token_ids") {
    ASSIGN_OR_RETURN(sampling.stop_ids, ids_of(member, kStopIdsMax));
  } else if (key == "stop") {
    ASSIGN_OR_RETURN(sampling.stop, stops_of(member));
  } else {
    return Use::kUnknown;
  }
  return Use::kUsed;
}

/// Keys that `sampling_params` and a chat have in common. Null means that the key is missing.
Result<Use> read_sampling(const WireField& member, GenerateCall& call) {
  ASSIGN_OR_RETURN(const Use distribution, read_distribution(member, call.sampling));
  if (distribution == Use::kUsed) return Use::kUsed;
  ASSIGN_OR_RETURN(const Use ends, read_ends(member, call));
  if (ends == Use::kUsed) return Use::kUsed;
  const std::string& key = member.first;
  if (key == "n") {
    ASSIGN_OR_RETURN(const int64_t n, int_of(member, 1, kSamplesMax));
    call.num_samples = static_cast<int32_t>(n);
  } else if (key == "seed") {
    ASSIGN_OR_RETURN(const int64_t seed, int_of(member, INT64_MIN, INT64_MAX));
    call.seed = static_cast<uint64_t>(seed);
  } else if (key == "cache_salt") {
    ASSIGN_OR_RETURN(call.salt, string_of(member));
  } else if (key == "prompt_logprobs") {
    // The likeliest tokens beside those of the prompt are for teachers of the graph only.
    ASSIGN_OR_RETURN([[maybe_unused]] const int64_t num_top, int_of(member, 0, 1));
    call.sampling.prompt_logprobs = true;
  } else {
    return Use::kUnknown;
  }
  return Use::kUsed;
}

Status refuse_stream(const WireField& member) {
  ASSIGN_OR_RETURN(const bool streams, bool_of(member));
  if (streams) return error(Code::kInvalid, "'stream' is true: replies here are whole");
  return ok();
}

Status finish(GenerateCall& call) { return validate(call.sampling); }

Result<Json> object_at(const WireField& member) {
  if (!member.second.is_object())
    return error(Code::kInvalid, "'{}' is {}, not an object", member.first, member.second.kind());
  return member.second;
}

Result<std::vector<ChatMessage>> messages_of(const WireField& member) {
  auto messages = messages_from_json(member.second);
  if (!messages.ok()) return std::move(messages).error().while_doing("'messages'");
  if (messages->empty()) return error(Code::kInvalid, "'messages' is empty");
  if (const Status checked = check_messages(*messages); !checked.ok())
    return Error(checked.error()).while_doing("'messages'");
  return messages;
}

Result<Json> tools_of(const WireField& member) {
  if (const Status checked = check_tools(member.second); !checked.ok())
    return Error(checked.error()).while_doing("'tools'");
  return member.second;
}

/// `extra_args` of sampling_params: those of prime-rl.
Status read_extra_args(const WireField& member, GenerateCall& call) {
  ASSIGN_OR_RETURN(const Json args, object_at(member));
  for (const WireField& each : args.as_object()) {
    if (each.second.is_null()) continue;
    if (each.first != "prl_compact_logprobs") {
      call.ignored.push_back("sampling_params.extra_args." + each.first);
      continue;
    }
    ASSIGN_OR_RETURN(call.wants_compact_logprobs, bool_of(each));
  }
  return ok();
}

Status read_sampling_params(const Json& object, GenerateCall& call) {
  bool has_logprobs = false;
  for (const WireField& member : object.as_object()) {
    const std::string& key = member.first;
    // Replies have ids, and `flat_logprobs` is how vLLM stores log-probabilities.
    if (member.second.is_null() || key == "skip_special_tokens" || key == "detokenize" ||
        key == "flat_logprobs")
      continue;
    if (key == "logprobs") {
      ASSIGN_OR_RETURN(const int32_t num_top, num_top_of(member));
      // 0 and 1 mean the sampled token's own, which every reply has.
      call.sampling.num_top_logprobs = num_top > 1 ? num_top : 0;
      has_logprobs = true;
      continue;
    }
    if (key == "routed_experts_prompt_start") {
      ASSIGN_OR_RETURN(const int64_t start, int_of(member, 0, INT32_MAX));
      call.sampling.routed_experts_start = static_cast<int32_t>(start);
      continue;
    }
    if (key == "extra_args") {
      RETURN_IF_ERROR(read_extra_args(member, call));
      continue;
    }
    auto used = read_sampling(member, call);
    if (!used.ok()) return std::move(used).error().while_doing("'sampling_params'");
    if (*used == Use::kUnknown) call.ignored.push_back("sampling_params." + key);
  }
  if (call.wants_compact_logprobs && !has_logprobs)
    return error(Code::kInvalid, "'prl_compact_logprobs' is true without 'logprobs'");
  return ok();
}

}  // namespace

int32_t status_of(const Error& error) {
  switch (error.code()) {
    case Code::kInvalid:
      return 400;
    case Code::kNotFound:
      return 404;
    case Code::kExhausted:
      return 429;
    case Code::kCancelled:
      return 410;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadline:
      return 504;
    default:
      return 500;
  }
}

Result<GenerateCall> read_generate_call(std::string_view body) {
  ASSIGN_OR_RETURN(const Json json, object_of(body));
  GenerateCall call;
  call.sampling.routed_experts_start = 0;  // an engine that keeps experts reports them
  bool has_prompt = false;
  for (const WireField& member : json.as_object()) {
    const std::string& key = member.first;
    if (member.second.is_null()) continue;
    if (key == "token_ids") {
      ASSIGN_OR_RETURN(call.prompt, ids_of(member, kWirePromptMax));
      has_prompt = true;
    } else if (key == "model") {
      ASSIGN_OR_RETURN(call.model, string_of(member));
    } else if (key == "sampling_params") {
      ASSIGN_OR_RETURN(const Json sampling, object_at(member));
      RETURN_IF_ERROR(read_sampling_params(sampling, call));
    } else if (key == "cache_salt") {
      ASSIGN_OR_RETURN(call.salt, string_of(member));
    } else if (key == "return_token_ids") {
      ASSIGN_OR_RETURN(call.wants_token_ids, bool_of(member));
    } else if (key == "stream") {
      RETURN_IF_ERROR(refuse_stream(member));
    } else if (key == "features" || key == "content_parts") {
      return error(Code::kInvalid, "'{}' is not available: prompts are token ids", key);
    } else if (key != "request_id") {
      call.ignored.push_back(key);
    }
  }
  if (!has_prompt) return error(Code::kInvalid, "the body has no 'token_ids'");
  if (call.prompt.empty()) return error(Code::kInvalid, "'token_ids' is empty");
  RETURN_IF_ERROR(finish(call));
  return call;
}

Result<ChatCall> read_chat_call(std::string_view body) {
  ASSIGN_OR_RETURN(const Json json, object_of(body));
  ChatCall call;
  for (const WireField& member : json.as_object()) {
    const std::string& key = member.first;
    if (member.second.is_null()) continue;
    if (key == "messages") {
      ASSIGN_OR_RETURN(call.messages, messages_of(member));
    } else if (key == "model") {
      ASSIGN_OR_RETURN(call.generate.model, string_of(member));
    } else if (key == "tools") {
      ASSIGN_OR_RETURN(call.tools, tools_of(member));
    } else if (key == "chat_template_kwargs") {
      ASSIGN_OR_RETURN(call.template_kwargs, object_at(member));
    } else if (key == "logprobs") {
      ASSIGN_OR_RETURN(call.wants_logprobs, bool_of(member));
    } else if (key == "top_logprobs") {
      ASSIGN_OR_RETURN(call.generate.sampling.num_top_logprobs, num_top_of(member));
    } else if (key == "return_token_ids") {
      ASSIGN_OR_RETURN(call.generate.wants_token_ids, bool_of(member));
    } else if (key == "stream") {
      RETURN_IF_ERROR(refuse_stream(member));
    } else {
      ASSIGN_OR_RETURN(const Use used, read_sampling(member, call.generate));
      if (used == Use::kUnknown) call.generate.ignored.push_back(key);
    }
  }
  if (call.messages.empty()) return error(Code::kInvalid, "the body has no 'messages'");
  if (call.generate.sampling.num_top_logprobs > 0 && !call.wants_logprobs)
    return error(Code::kInvalid, "'top_logprobs' is {} without 'logprobs' true",
                 call.generate.sampling.num_top_logprobs);
  RETURN_IF_ERROR(finish(call.generate));
  return call;
}

Result<TokenizeCall> read_tokenize_call(std::string_view body) {
  ASSIGN_OR_RETURN(const Json json, object_of(body));
  TokenizeCall call;
  bool has_prompt = false;
  for (const WireField& member : json.as_object()) {
    const std::string& key = member.first;
    if (member.second.is_null()) continue;
    if (key == "prompt") {
      ASSIGN_OR_RETURN(call.prompt, string_of(member));
      has_prompt = true;
    } else if (key == "messages") {
      ASSIGN_OR_RETURN(call.messages, messages_of(member));
    } else if (key == "model") {
      ASSIGN_OR_RETURN(call.model, string_of(member));
    } else if (key == "tools") {
      ASSIGN_OR_RETURN(call.tools, tools_of(member));
    } else if (key == "chat_template_kwargs") {
      ASSIGN_OR_RETURN(call.template_kwargs, object_at(member));
    } else if (key == "add_generation_prompt") {
      ASSIGN_OR_RETURN(call.adds_generation_prompt, bool_of(member));
    } else if (key == "add_special_tokens") {
      ASSIGN_OR_RETURN(call.adds_special_tokens, bool_of(member));
    } else if (key == "return_token_strs") {
      ASSIGN_OR_RETURN(call.wants_texts, bool_of(member));
    }
  }
  if (has_prompt == !call.messages.empty())
    return error(Code::kInvalid, "the body needs 'prompt' or 'messages', and not both");
  return call;
}

}  // namespace primerl
