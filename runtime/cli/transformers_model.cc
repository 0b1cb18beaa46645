#include "runtime/cli/transformers_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "graph/base/files.h"
#include "graph/base/json.h"
#include "kernels/models/config.h"
#include "runtime/cli/python_program.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

constexpr Duration kStartTimeout = Duration::seconds(60);  // of Python alone
constexpr Duration kCallTimeout = Duration::seconds(600);  // the first call imports and loads
constexpr int64_t kAnswerBytesMax = int64_t{4} << 20;      // 32 bytes for each id, and more
constexpr size_t kConfigBytesMax = size_t{1} << 20;

Result<std::vector<int32_t>> ids_at(const Json& json, std::string_view key) {
  const Json* list = json.find(key);
  if (list == nullptr || !list->is_array())
    return error(Code::kInvalid, "its answer has no list '{}'", key);
  std::vector<int32_t> ids;
  for (const Json& id : list->as_array()) {
    if (!id.is_integer() || id.as_int() < 0 || id.as_int() > INT32_MAX)
      return error(Code::kInvalid, "'{}' of its answer has {}, which is no token id", key,
                   id.dump());
    ids.push_back(static_cast<int32_t>(id.as_int()));
  }
  return ids;
}

Result<std::vector<float>> logprobs_at(const Json& json, size_t count) {
  const Json* list = json.find("logprobs");
  if (list == nullptr || !list->is_array())
    return error(Code::kInvalid, "its answer has no list 'logprobs'");
  if (list->as_array().size() != count)
    return error(Code::kInvalid, "its answer has {} log-probabilities for {} tokens",
                 list->as_array().size(), count);
  std::vector<float> logprobs;
  for (const Json& value : list->as_array()) {
    if (!value.is_number() || !(value.as_double() <= 1e-3))
      return error(Code::kInvalid, "'logprobs' of its answer has {}", value.dump());
    logprobs.push_back(static_cast<float>(value.as_double()));
  }
  return logprobs;
}

}  // namespace

Result<std::unique_ptr<TransformersModel>> TransformersModel::load(
    const ModelCommandArguments& arguments) {
  ASSIGN_OR_RETURN(const auto python, find_python());
  OutsidePool pool;
  pool.name = "transformers";
  pool.command = {python.string(), "-c", std::string(model_worker_source())};
  pool.start_timeout = kStartTimeout;
  pool.call_timeout = kCallTimeout;
  pool.answer_bytes_max = kAnswerBytesMax;
  std::unique_ptr<TransformersModel> model(
      new TransformersModel({.pools = {std::move(pool)}}, arguments.model));
  std::error_code fault;
  auto answer =
      model->ask(Json::object()
                     .set("call", "load")
                     .set("model", std::filesystem::absolute(arguments.model, fault).string())
                     .set("device", arguments.device)
                     .set("dtype", arguments.dtype)
                     .set("threads", arguments.threads));
  if (!answer.ok())
    return std::move(answer).error().note(
        "transformers computes it in the Python that PRIMERL_PYTHON names, which needs the "
        "packages torch and transformers");
  ASSIGN_OR_RETURN(model->vocab_size_, answer->get_int("vocab_size"));
  ASSIGN_OR_RETURN(model->end_ids_, ids_at(*answer, "end_ids"));
  return model;
}

Result<Json> TransformersModel::ask(const Json& body) {
  auto answer = asker_.ask(0, 0, true, body.dump());
  if (!answer.ok())
    return std::move(answer).error().while_doing(fmt::format("transformers, '{}'", folder_));
  return parse_json(*answer, "the answer of transformers");
}

Status TransformersModel::check_ids(const std::vector<int32_t>& ids, size_t num_more) const {
  if (ids.empty()) return error(Code::kInvalid, "there are no token ids");
  if (ids.size() + num_more > kTransformersIdsMax)
    return error(Code::kExhausted, "{} tokens are more than the {} that transformers is asked for",
                 ids.size() + num_more, kTransformersIdsMax);
  const auto largest = std::ranges::max(ids);
  if (largest >= vocab_size_)
    return error(Code::kInvalid, "token {} is not in the vocabulary of {}", largest, vocab_size_);
  return ok();
}

Result<std::vector<float>> TransformersModel::score(const std::vector<int32_t>& ids) {
  RETURN_IF_ERROR(check_ids(ids, 0));
  ASSIGN_OR_RETURN(const Json answer,
                   ask(Json::object().set("call", "score").set("ids", Json::list(ids))));
  return logprobs_at(answer, ids.size() - 1);
}

Result<TransformersModel::Sampled> TransformersModel::generate(const std::vector<int32_t>& ids,
                                                               const SamplingParams& sampling,
                                                               uint64_t seed) {
  RETURN_IF_ERROR(check_ids(ids, static_cast<size_t>(sampling.max_tokens)));
  std::vector<int32_t> ends = sampling.stop_ids;
  if (!sampling.ignore_eos) ends.insert(ends.end(), end_ids_.begin(), end_ids_.end());
  std::ranges::sort(ends);
  ends.erase(std::ranges::unique(ends).begin(), ends.end());
  if (!ends.empty() && ends.back() >= vocab_size_)
    return error(Code::kInvalid, "stop id {} is not in the vocabulary of {}", ends.back(),
                 vocab_size_);
  Json options = Json::object()
                     .set("temperature", sampling.temperature)
                     .set("top_k", static_cast<int64_t>(sampling.top_k))
                     .set("top_p", sampling.top_p)
                     .set("min_p", sampling.min_p);
  ASSIGN_OR_RETURN(const Json answer,
                   ask(Json::object()
                           .set("call", "generate")
                           .set("ids", Json::list(ids))
                           .set("max_tokens", static_cast<int64_t>(sampling.max_tokens))
                           .set("min_tokens", static_cast<int64_t>(sampling.min_tokens))
                           .set("end_ids", Json::list(ends))
                           .set("seed", static_cast<int64_t>(seed >> 1))
                           .set("sampling", std::move(options))));
  Sampled sampled;
  ASSIGN_OR_RETURN(sampled.tokens, ids_at(answer, "tokens"));
  if (sampled.tokens.empty() || std::cmp_greater(sampled.tokens.size(), sampling.max_tokens))
    return error(Code::kInvalid, "its answer has {} tokens, {} are most", sampled.tokens.size(),
                 sampling.max_tokens);
  ASSIGN_OR_RETURN(sampled.logprobs, logprobs_at(answer, sampled.tokens.size()));
  return sampled;
}

bool is_for_transformers(const std::string& impl, const std::string& folder) {
  if (impl != "auto") return impl == "transformers";
  const auto config = read_model_config(folder);
  const Status usable = config.ok() ? check_is_supported(*config) : Status(config.error());
  if (usable.ok()) return false;
  // A file that is no config at all is a fault for transformers, too.
  const auto text = read_text_file(std::filesystem::path(folder) / "config.json", kConfigBytesMax);
  if (!text.ok()) return false;
  const auto json = parse_json(*text, "config.json");
  if (!json.ok() || !json->get_string("model_type").ok()) return false;
  complain("note: transformers computes '{}': {}\n", folder, usable.error().message());
  return true;
}

}  // namespace primerl
