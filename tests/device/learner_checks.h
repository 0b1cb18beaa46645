/// Code that tests of learners on a device share: batches, and tolerances between two learners.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/engine/kept_sets.h"
#include "kernels/train/learner.h"
#include "kernels/train/options.h"
#include "tests/cpu/never.h"
#include "tests/cpu/tiny_model.h"

namespace primerl::testing {

inline LearnerOptions options_of(const std::string& dtype) {
  LearnerOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.dtype = dtype;
  options.optimizer.lr = 1e-3;
  options.loss.kl_weight = 0.05;
  return options;
}

/// A mixture in which each row goes to all experts: in bf16 a router may choose differently among
/// nearly equal ones.
inline std::filesystem::path all_experts_folder(const std::string& type) {
  const auto folder =
      make_folder({.model_type = type, .hidden_size = 64, .head_dim = 64, .deviation = 0.1});
  std::ifstream in(folder / "config.json");
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::string few = "\"num_experts_per_tok\": 3";
  const size_t at = text.find(few);
  CHECK(at != std::string::npos, text);
  std::ofstream(folder / "config.json")
      << text.replace(at, few.size(), "\"num_experts_per_tok\": 8");
  return folder;
}

/// Tokens [0, prompt) depend only on `prompt_key`.
inline TrainSample sample_of(int32_t number, int32_t prompt_key, int32_t prompt, int32_t length,
                             float temperature) {
  TrainSample made;
  made.temperature = temperature;
  for (int32_t i = 0; i < length; ++i) {
    const bool sampled = i >= prompt;
    made.tokens.push_back((sampled ? number * 13 + i * i : prompt_key * 31 + i * 7) % 60);
    made.loss_mask.push_back(sampled && i % 7 != 3 ? 1 : 0);
    const bool counts = made.loss_mask.back() != 0;
    made.logprobs.push_back(counts ? -3.0F - 0.2F * static_cast<float>(i % 4) : 0.0F);
    made.advantages.push_back(counts ? static_cast<float>(number % 3) - 0.8F : 0.0F);
  }
  return made;
}

/// Three groups of shared prompts, two temperatures, one sample with kept sets.
inline TrainBatch mixed_batch() {
  TrainBatch made;
  for (int32_t i = 0; i < 12; ++i)
    made.samples.push_back(
        sample_of(i, i / 4, 9 + i / 4, 14 + 3 * (i % 5), i % 2 == 0 ? 1.0F : 0.7F));
  TrainSample& cut = made.samples[5];
  std::vector<std::byte> kept;
  for (size_t i = 0; i < cut.tokens.size(); ++i) {
    if (cut.loss_mask[i] == 0) continue;
    std::vector<int32_t> ids = {cut.tokens[i]};
    for (const int32_t id : {3, 17, 40, 58})
      if (id != cut.tokens[i]) ids.push_back(id);
    std::ranges::sort(ids);
    append_kept(ids, 61, kept);
  }
  cut.kept = Blob(std::move(kept));
  return made;
}

inline std::vector<float> floats_of(const WeightTensor& tensor) {
  std::vector<float> values(tensor.bytes.size() / sizeof(float));
  std::memcpy(values.data(), tensor.bytes.bytes().data(), tensor.bytes.size());
  return values;
}

/// |got - want| / |want| of two tensors. A tensor that is almost 0 compared with all of them, whose
/// norm is `size`, is measured relative to the whole.
inline double distance_of(const WeightTensor& got, const WeightTensor& want, double size) {
  const auto a = floats_of(got), b = floats_of(want);
  EXPECT_EQ(a.size(), b.size()) << want.name;
  double off = 0, all = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    off += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    all += double{b[i]} * b[i];
  }
  return off == 0 ? 0 : std::sqrt(off) / (std::sqrt(all) + 0.01 * size);
}

inline double size_of(const std::vector<WeightTensor>& tensors) {
  double sum = 0;
  for (const auto& tensor : tensors)
    for (const float value : floats_of(tensor)) sum += double{value} * value;
  return std::sqrt(sum);
}

/// The largest of all tensors.
inline double distance_of(const std::vector<WeightTensor>& got,
                          const std::vector<WeightTensor>& want) {
  const double size = size_of(want);
  double largest = 0;
  for (size_t t = 0; t < want.size(); ++t)
    largest = std::max(largest, distance_of(got.at(t), want[t], size));
  return largest;
}

/// The distance of each tensor is at most `tolerance`.
inline void expect_close(const std::vector<WeightTensor>& got,
                         const std::vector<WeightTensor>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  const double size = size_of(want);
  for (size_t t = 0; t < want.size(); ++t) {
    ASSERT_EQ(got[t].name, want[t].name);
    EXPECT_LE(distance_of(got[t], want[t], size), tolerance) << want[t].name;
  }
}

inline bool are_equal(const std::vector<WeightTensor>& a, const std::vector<WeightTensor>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (!(a[i].bytes == b[i].bytes)) return false;
  return a.size() == b.size();
}

inline TrainReport must_step(Learner& learner, const TrainBatch& batch) {
  auto report = learner.step(batch, never);
  EXPECT_TRUE(report.ok()) << (report.ok() ? "" : report.error().text());
  return report.ok() ? *report : TrainReport();
}

/// The error of a norm is at most `of_gradient`, that of its gradient.
inline void expect_like(const TrainReport& got, const TrainReport& want, double tolerance,
                        double of_gradient) {
  EXPECT_NEAR(got.loss, want.loss, tolerance * (1 + std::abs(want.loss)));
  EXPECT_NEAR(got.entropy_mean, want.entropy_mean, tolerance * (1 + want.entropy_mean));
  EXPECT_NEAR(got.mismatch_kl_mean, want.mismatch_kl_mean, tolerance * (1 + want.mismatch_kl_mean));
  EXPECT_NEAR(got.grad_norm, want.grad_norm, of_gradient * want.grad_norm);
  const StepMeasures &got_measures = got.measures, &want_measures = want.measures;
  ASSERT_EQ(got_measures.grad_norms.size(), want_measures.grad_norms.size());
  for (size_t i = 0; i < got_measures.grad_norms.size(); ++i)
    EXPECT_NEAR(got_measures.grad_norms[i], want_measures.grad_norms[i],
                of_gradient * want.grad_norm)
        << to_string(kGradientGroups[i]);
  EXPECT_EQ(got_measures.flops, want_measures.flops);
  EXPECT_EQ(got.num_tokens, want.num_tokens);
  EXPECT_EQ(got.num_loss_tokens, want.num_loss_tokens);
  EXPECT_EQ(got.num_micro_batches, want.num_micro_batches);
}
inline void expect_like(const TrainReport& got, const TrainReport& want, double tolerance) {
  expect_like(got, want, tolerance, tolerance);
}

}  // namespace primerl::testing
