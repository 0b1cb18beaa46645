#include "actors/tinker/answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "actors/messages/client.h"
#include "actors/tinker/protobuf.h"
#include "graph/base/assert.h"
#include "graph/base/json.h"

namespace primerl::tinker {
namespace {

constexpr int kDynamicConfigSeconds = 300;
constexpr uint64_t kFloat32 = 1, kInt64 = 2;  // DType

template <class T>
std::string_view raw_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// A user's own fault stays one; the server's may be gone the next time.
std::string_view category_of(const Error& error) {
  const bool is_of_user = error.code() == Code::kInvalid || error.code() == Code::kNotFound ||
                          error.code() == Code::kExists;
  return is_of_user ? "user" : "server";
}

/// The log-probabilities of a datum, one for each cell.
void append_cells(const std::vector<float>& logprobs, const TargetShape& shape,
                  std::vector<float>& cells) {
  const size_t begin = cells.size();
  cells.resize(begin + static_cast<size_t>(shape.num_cells()));
  CHECK(logprobs.size() ==
            (shape.cells.empty() ? static_cast<size_t>(shape.num_cells()) : shape.cells.size()),
        "a result has other targets than its request");
  for (size_t i = 0; i < logprobs.size(); ++i)
    cells[begin + (shape.cells.empty() ? i : static_cast<size_t>(shape.cells[i]))] = logprobs[i];
}

/// One number for each datum.
std::string entry_of_ages(std::span<const int64_t> ages) {
  std::vector<int64_t> offsets = {0};
  for (size_t i = 0; i < ages.size(); ++i)
    offsets.push_back(static_cast<int64_t>((i + 1) * sizeof(int64_t)));
  ProtoWriter tensor, entry;
  tensor.bytes(1, {reinterpret_cast<const char*>(ages.data()), ages.size_bytes()});
  tensor.bytes(2, raw_bytes(offsets));
  tensor.number(3, kInt64);
  entry.bytes(1, "updates_behind");
  entry.bytes(2, std::move(tensor).finish());
  return std::move(entry).finish();
}

/// One ArrayRecord: data in a row whose targets have as many columns.
std::string record_of(const LossResult& result, const std::vector<TargetShape>& shapes,
                      std::span<const int64_t> ages, size_t begin, size_t end) {
  std::vector<float> cells;
  std::vector<int64_t> offsets = {0};
  for (size_t i = begin; i < end; ++i) {
    append_cells(result.logprobs[i], shapes[i], cells);
    offsets.push_back(std::ssize(cells) * static_cast<int64_t>(sizeof(float)));
  }
  ProtoWriter tensor;
  tensor.bytes(1, raw_bytes(cells));
  tensor.bytes(2, raw_bytes(offsets));
  tensor.number(3, kFloat32);
  if (shapes[begin].num_columns > 0)
    tensor.number(4, static_cast<uint64_t>(shapes[begin].num_columns));
  ProtoWriter entry;
  entry.bytes(1, "logprobs");
  entry.bytes(2, std::move(tensor).finish());
  ProtoWriter record;
  record.bytes(2, std::move(entry).finish());
  if (!ages.empty()) record.bytes(2, entry_of_ages(ages.subspan(begin, end - begin)));
  record.number(3, end - begin);
  return std::move(record).finish();
}

std::string metric_of(std::string_view name, double value) {
  ProtoWriter entry;
  entry.bytes(1, name);
  entry.real(2, value);
  return std::move(entry).finish();
}

std::string top_of(const TopTable& top) {
  const size_t num_slots = size_t{top.num_rows} * top.num_columns;
  CHECK(top.ids.size() == num_slots && top.logprobs.size() == num_slots,
        "a table of tokens has another size than its shape");
  ProtoWriter message;
  message.bytes(1, raw_bytes(top.ids));
  message.bytes(2, raw_bytes(top.logprobs));
  message.number(3, top.num_columns);
  message.number(4, top.num_rows);
  return std::move(message).finish();
}

std::string sequence_of(const SampledTokens& sampled) {
  ProtoWriter message;
  message.number(1, sampled.ended_by_length ? 1 : 0);
  message.bytes(2, raw_bytes(sampled.tokens));
  message.bytes(3, raw_bytes(sampled.logprobs));
  if (sampled.top.num_columns > 0) message.bytes(4, top_of(sampled.top));
  for (const VersionSpan& span : sampled.spans) {
    ProtoWriter part;
    part.number(1, static_cast<uint64_t>(span.version.value));
    part.number(2, static_cast<uint64_t>(span.begin));
    part.number(3, static_cast<uint64_t>(span.end));
    message.bytes(kSpanField, std::move(part).finish());
  }
  return std::move(message).finish();
}

}  // namespace

int32_t http_status(const Error& error) {
  switch (error.code()) {
    case Code::kInvalid:
      return 400;
    case Code::kNotFound:
      return 404;
    case Code::kCancelled:
      return 410;
    case Code::kExists:
      return 422;
    case Code::kExhausted:
      return 429;
    case Code::kUnavailable:
      return 503;
    case Code::kDeadline:
      return 408;
    default:
      return 500;
  }
}

std::string refusal(const Error& error) {
  return Json::object().set("detail", error.text()).set("category", category_of(error)).dump();
}

std::string failed_answer(const Error& error) {
  return Json::object().set("error", error.text()).set("category", category_of(error)).dump();
}

std::string try_again_answer(uint64_t request, QueueState state) {
  constexpr std::array kNames = {"active", "paused_capacity", "paused_rate_limit"};
  return Json::object()
      .set("type", "try_again")
      .set("request_id", request_name(request))
      .set("queue_state", kNames[static_cast<size_t>(state)])
      .dump();
}

std::string future_answer(uint64_t request) {
  return Json::object().set("request_id", request_name(request)).dump();
}

std::string sample_future_answer(uint64_t request, int32_t num_samples) {
  Json ids = Json::array();
  for (int32_t i = 0; i < num_samples; ++i)
    ids.push_back(fmt::format("{}:{}", request_name(request), i));
  return Json::object()
      .set("request_id", request_name(request))
      .set("sample_sequence_ids", std::move(ids))
      .dump();
}

std::string client_config_answer() {
  return Json::object()
      .set("pjwt_auth_enabled", false)
      .set("use_pyqwest_transport", false)
      .set("sample_join_sampling_session", true)
      .dump();
}

std::string dynamic_config_answer() {
  return Json::object()
      .set("sample_cancel_enabled", true)
      .set("refresh_interval_sec", kDynamicConfigSeconds)
      .dump();
}

std::string session_answer(std::string_view session) {
  return Json::object().set("session_id", session).dump();
}

std::string empty_answer() { return "{}"; }

std::string telemetry_answer() { return Json::object().set("status", "accepted").dump(); }

std::string health_answer() { return Json::object().set("status", "ok").dump(); }

std::string capabilities_answer(const std::vector<ServedModel>& models,
                                const std::vector<ServedClient>& clients) {
  Json list = Json::array();
  for (const ServedModel& model : models)
    list.push_back(Json::object()
                       .set("model_name", model.name)
                       .set("max_context_length", model.context_tokens)
                       .set("trainable", true)
                       .set("sampleable", true));
  Json tenants = Json::array();
  for (const ServedClient& client : clients)
    tenants.push_back(
        Json::object()
            .set("tenant", client.tenant)
            .set("open_models_max", 1)
            .set("open_model", client.open_model.empty() ? Json() : Json(client.open_model))
            .set("lora_rank", client.rank)
            .set("snapshots_max", client.snapshots_max)
            .set("samples_max", client.samples_max));
  return Json::object()
      .set("supported_models", std::move(list))
      .set("tenants", std::move(tenants))
      .dump();
}

std::string model_answer(std::string_view model) {
  return Json::object().set("model_id", model).dump();
}

std::string info_answer(const ModelInfo& info) {
  return Json::object()
      .set("model_id", info.model)
      .set("is_lora", true)
      .set("lora_rank", info.rank)
      .set("model_name", info.base_model)
      .set("model_data", Json::object()
                             .set("arch", info.arch)
                             .set("model_name", info.base_model)
                             .set("tokenizer_id", info.tokenizer))
      .dump();
}

std::string optim_answer(const std::map<std::string, double>& metrics) {
  Json numbers = Json::object();
  for (const auto& [name, value] : metrics)
    if (std::isfinite(value)) numbers.set(name, value);
  return Json::object().set("metrics", std::move(numbers)).dump();
}

std::string saved_answer(const SavedWeights& saved) {
  return Json::object().set("path", to_path(saved)).dump();
}

std::string sampler_answer(std::string_view sampler) {
  return Json::object().set("sampling_session_id", sampler).dump();
}

std::string loaded_answer(const SavedWeights& from, std::string_view model) {
  return Json::object().set("path", to_path(from)).set("model_id", model).dump();
}

std::string sampler_info_answer(std::string_view sampler, std::string_view base_model,
                                std::string_view path) {
  Json answer = Json::object().set("sampler_id", sampler).set("base_model", base_model);
  if (!path.empty()) answer.set("model_path", path);
  return answer.dump();
}

std::string loss_answer(const LossResult& result, const std::vector<TargetShape>& shapes,
                        const std::vector<int64_t>& ages) {
  CHECK(result.logprobs.size() == shapes.size(), "a result has other data than its request");
  const auto is_known = [](int64_t age) { return age >= 0; };
  const bool is_any_known = ages.size() == shapes.size() && std::ranges::any_of(ages, is_known);
  const std::vector<int64_t> none;
  ProtoWriter message;
  message.bytes(1, "ArrayRecord");
  for (size_t begin = 0; begin < shapes.size();) {
    size_t end = begin + 1;
    while (end < shapes.size() && shapes[end].num_columns == shapes[begin].num_columns) ++end;
    message.bytes(2, record_of(result, shapes, is_any_known ? ages : none, begin, end));
    begin = end;
  }
  const LossTotals& totals = result.totals;
  const auto add = [&](std::string_view name, double value) {
    message.bytes(3, metric_of(name, value));
  };
  add("loss:sum", totals.loss);
  add("entropy:sum", totals.entropy);
  add("mismatch_kl:sum", totals.mismatch_kl);
  add("num_trained:sum", static_cast<double>(totals.num_trained));
  add("num_masked:sum", static_cast<double>(totals.num_masked));
  add("num_capped:sum", static_cast<double>(totals.num_capped));
  add("num_targets:sum", static_cast<double>(totals.num_targets));
  add("num_tokens:sum", static_cast<double>(totals.num_tokens));
  DataAges known;
  for (const int64_t age : ages)
    if (age >= 0) known.add(age);
  add("num_sampled_data:sum", static_cast<double>(known.num_data));
  add("updates_behind:sum", static_cast<double>(known.sum));
  add("updates_behind:max", static_cast<double>(known.most));
  return std::move(message).finish();
}

std::string sample_answer(const SampleResult& result) {
  ProtoWriter message;
  for (const SampledTokens& each : result.sequences) message.bytes(1, sequence_of(each));
  if (!result.prompt_logprobs.empty()) message.bytes(2, raw_bytes(result.prompt_logprobs));
  if (result.prompt_top.num_columns > 0) message.bytes(3, top_of(result.prompt_top));
  message.number(4, static_cast<uint64_t>(result.num_cached));
  return std::move(message).finish();
}

}  // namespace primerl::tinker
