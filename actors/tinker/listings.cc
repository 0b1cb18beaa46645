#include "actors/tinker/listings.h"

#include <algorithm>

#include "graph/base/clock.h"
#include "graph/base/json.h"

namespace primerl::tinker {
namespace {

std::string text_of_time(int64_t seconds) { return iso_time(static_cast<double>(seconds)); }

Json weights_json(const ListedWeights& weights) {
  const SavedWeights& saved = weights.saved;
  const std::string_view folder = saved.is_for_sampling ? "sampler_weights" : "weights";
  Json json = Json::object()
                  .set("checkpoint_id", fmt::format("{}/{}", folder, saved.name))
                  .set("checkpoint_type", saved.is_for_sampling ? "sampler" : "training")
                  .set("time", text_of_time(weights.made))
                  .set("tinker_path", to_path(saved))
                  .set("public", false);
  if (weights.expires) json.set("expires_at", text_of_time(*weights.expires));
  return json;
}

Json model_json(const ListedModel& model) {
  Json json = Json::object()
                  .set("training_run_id", model.name)
                  .set("base_model", model.base_model)
                  .set("model_owner", model.tenant)
                  .set("is_lora", true)
                  .set("lora_rank", model.rank)
                  .set("corrupted", false)
                  .set("last_request_time", text_of_time(model.last_request));
  for (const auto& [key, is_for_sampling] :
       {std::pair("last_checkpoint", false), std::pair("last_sampler_checkpoint", true)}) {
    const auto newest = std::ranges::find(model.weights, is_for_sampling, [](const auto& each) {
      return each.saved.is_for_sampling;
    });
    if (newest != model.weights.end()) json.set(key, weights_json(*newest));
  }
  return json;
}

Json cursor_json(size_t count) {
  return Json::object().set("offset", 0).set("limit", count).set("total_count", count);
}

}  // namespace

std::string models_listed(std::span<const ListedModel> models) {
  Json list = Json::array();
  for (const ListedModel& model : models) list.push_back(model_json(model));
  return Json::object()
      .set("training_runs", std::move(list))
      .set("cursor", cursor_json(models.size()))
      .dump();
}

std::string model_listed(const ListedModel& model) { return model_json(model).dump(); }

std::string weights_listed(std::span<const ListedWeights> weights) {
  Json list = Json::array();
  for (const ListedWeights& each : weights) list.push_back(weights_json(each));
  return Json::object()
      .set("checkpoints", std::move(list))
      .set("cursor", cursor_json(weights.size()))
      .dump();
}

std::string weights_info_answer(const WeightsInfo& info) {
  return Json::object()
      .set("base_model", info.base_model)
      .set("is_lora", true)
      .set("lora_rank", info.rank)
      .set("train_unembed", info.trains_unembed)
      .set("train_mlp", info.trains_mlp)
      .set("train_attn", info.trains_attention)
      .dump();
}

std::string sessions_listed(std::span<const std::string> sessions) {
  Json list = Json::array();
  for (const std::string& each : sessions) list.push_back(each);
  return Json::object().set("sessions", std::move(list)).dump();
}

std::string session_listed(std::span<const std::string> models,
                           std::span<const std::string> samplers) {
  Json model_list = Json::array(), sampler_list = Json::array();
  for (const std::string& each : models) model_list.push_back(each);
  for (const std::string& each : samplers) sampler_list.push_back(each);
  return Json::object()
      .set("training_run_ids", std::move(model_list))
      .set("sampler_ids", std::move(sampler_list))
      .dump();
}

std::string joined_answer(int64_t client) {
  return Json::object().set("client_counter", client).dump();
}

}  // namespace primerl::tinker
