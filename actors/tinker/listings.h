/// Answers of the REST routes of the Tinker wire: models, saved weights and sessions of a client,
/// as JSON. The wire calls a model a training run, and saved weights a checkpoint. Pure, any
/// thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "actors/tinker/names.h"

namespace primerl::tinker {

/// Times are seconds since 1970.
struct ListedWeights {
  SavedWeights saved;
  int64_t made = 0;
  std::optional<int64_t> expires = {};
};

struct ListedModel {
  std::string name;
  std::string tenant;
  std::string base_model;
  int32_t rank = 0;
  int64_t last_request = 0;
  std::vector<ListedWeights> weights = {};  // the newest first
};

struct WeightsInfo {
  std::string base_model;
  int32_t rank = 0;
  bool trains_unembed = false;
  bool trains_mlp = false;
  bool trains_attention = false;
};

/// Lists are whole: they are bounded by what a tenant may have, so a page has all entries.
std::string models_listed(std::span<const ListedModel> models);
std::string model_listed(const ListedModel& model);
std::string weights_listed(std::span<const ListedWeights> weights);
std::string weights_info_answer(const WeightsInfo& info);
std::string sessions_listed(std::span<const std::string> sessions);
std::string session_listed(std::span<const std::string> models,
                           std::span<const std::string> samplers);
/// The answer to `join_sampling_session`.
std::string joined_answer(int64_t client);

}  // namespace primerl::tinker
