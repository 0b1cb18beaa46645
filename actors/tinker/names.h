/// Names on the Tinker wire: models, samplers, saved weights, requests. Pure, any thread.
///
///   session-1:train:0                            model 0 of a session
///   session-1:sample:2                           sampler 2 of a session
///   tinker://session-1:train:0/weights/step-1    weights of a model, for training
///   tinker://session-1:train:0/sampler_weights/a the same, for sampling
///   r17                                          the future of request 17
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/result.h"

namespace primerl::tinker {

inline constexpr size_t kNameBytesMax = 256;       // of a name that a client sends
inline constexpr size_t kSavedNameBytesMax = 128;  // of saved weights: a folder has this name
inline constexpr int64_t kSeqMax = INT32_MAX;      // of a model's requests, models and samplers

/// Refuses an empty name, a long one and control characters; `key` is its member of the body.
Status check_name(std::string_view key, std::string_view name);
/// The number of a model's request: from 1.
Status check_model_seq(int64_t seq);
/// Letters, digits, '_', '-' and '.', not first a '.': no other folder can be named by it.
Status check_saved_name(std::string_view name);

std::string model_name(std::string_view session, int64_t model_seq);
std::string sampler_name(std::string_view session, int64_t sampler_seq);
std::string request_name(uint64_t request);
Result<uint64_t> read_request_name(std::string_view name);

struct SavedWeights {
  std::string model;
  bool is_for_sampling = false;
  std::string name;

  template <class F>
  static void fields(F& f) {
    using S = SavedWeights;
    f("model", &S::model)("is_for_sampling", &S::is_for_sampling)("name", &S::name);
  }
  friend bool operator==(const SavedWeights&, const SavedWeights&) = default;
};

/// A name of a folder for saved weights of any model of a tenant, as check_saved_name() wants it.
std::string folder_name(const SavedWeights& saved);

std::string to_path(const SavedWeights& saved);
/// Refuses a path that has other parts. kNotFound says what is wrong, as for weights of another
/// tenant: a client learns nothing about names that are not its own.
Result<SavedWeights> read_path(std::string_view path);

}  // namespace primerl::tinker
