/// Engines and learners on the CPU with a value of `products`, and how far apart they are.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cpu/learner/learner.h"
#include "kernels/devices/make.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/never.h"
#include "tests/cpu/tiny_adapters.h"
#include "tests/cpu/tiny_model.h"

namespace primerl::testing {

inline constexpr TenantSlot kTenant(0);

/// No width is a multiple of 128, and each has more than one block.
inline TinyModel wide_model(const std::string& model_type) {
  return {.model_type = model_type, .hidden_size = 160, .head_dim = 48, .deviation = 0.08};
}

inline EngineOptions engine_options(const std::string& products, int32_t threads = 1) {
  EngineOptions options;
  options.products = products;
  options.threads = threads;
  return options;
}

inline LearnerOptions learner_options(const std::string& products, double lr = 0) {
  LearnerOptions options;
  options.products = products;
  options.optimizer.lr = lr;
  options.optimizer.max_norm = 0;
  return options;
}

inline std::unique_ptr<CpuLearner> make_learner(const std::filesystem::path& folder,
                                                const LearnerOptions& options) {
  auto learner = std::make_unique<CpuLearner>(options, read_model_folder(folder).value());
  CHECK(learner->fill(read_model_tensors(folder).value()).ok(), "cannot fill");
  return learner;
}

/// Completions of six prompts of different lengths.
inline std::vector<FinishEvent> generate(Engine& engine,
                                         std::vector<std::vector<int32_t>>& tokens) {
  tokens.clear();
  for (uint64_t i = 0; i < 6; ++i) {
    SequenceRequest request;
    request.id = SequenceId(i);
    for (uint64_t t = 0; t < 2 + 5 * i; ++t)
      request.prompt_tokens.push_back(static_cast<int32_t>(2 + (i * 17 + t * 29) % 55));
    request.sampling.max_tokens = 8;
    request.sampling.ignore_eos = true;
    request.seed = i;
    tokens.push_back(request.prompt_tokens);
    CHECK(engine.submit(request).ok(), "refused");
  }
  std::vector<FinishEvent> ends(tokens.size());
  while (engine.has_work()) {
    CHECK(engine.step().ok(), "a step failed");
    for (const auto& event : engine.take_prefilled())
      CHECK(engine.take_over(event.id).ok(), "nothing to take over");
    for (auto& event : engine.take_finished()) {
      auto& sequence = tokens[event.id.value];
      sequence.insert(sequence.end(), event.tokens.begin(), event.tokens.end());
      ends[event.id.value] = std::move(event);
    }
  }
  return ends;
}

/// The largest difference of the log-probabilities that the engine sampled and the learner scores.
inline float mismatch(Engine& engine, Learner& learner) {
  std::vector<std::vector<int32_t>> tokens;
  const auto ends = generate(engine, tokens);
  float worst = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    CHECK(ends[i].logprobs.size() == 8, "no completion");
    const auto scored = learner.score(kTenant, tokens[i]).value();
    for (size_t t = 0; t < 8; ++t)
      worst = std::max(worst, std::abs(scored[scored.size() - 8 + t] - ends[i].logprobs[t]));
  }
  return worst;
}

/// Expects that engine and learner stay equal after updates that are applied in parts or at once,
/// and that a checkpoint, which has the masters in float32, gives the same numbers.
inline void expect_equal_after_updates(const std::filesystem::path& folder,
                                       const std::string& products) {
  auto learner = make_learner(folder, learner_options(products, 1e-2));
  auto engine = make_torch_engine(engine_options(products), folder).value();
  for (int64_t version = 1; version <= 3; ++version) {
    const auto report = learner->step(two_groups(kTenant), never);
    ASSERT_TRUE(report.ok()) << report.error().text();
    ASSERT_FALSE(report->skipped) << report->skip_reason;
    EXPECT_GT(mismatch(*engine, *learner), 0.0F) << "the engine has older weights";
    const auto snapshot = learner->snapshot(kTenant, PolicyVersion(version)).value();
    for (int parts = 0; version != 2 && !engine->prepare(snapshot); ++parts) ASSERT_LT(parts, 100);
    ASSERT_TRUE(engine->apply(*snapshot).ok());
    EXPECT_EQ(mismatch(*engine, *learner), 0.0F) << version;
  }
  const auto saved = scratch_folder("saved");
  ASSERT_TRUE(learner->save(kTenant, saved).ok());
  auto resumed = make_learner(folder, learner_options(products, 1e-2));
  ASSERT_TRUE(resumed->load(kTenant, saved).ok());
  EXPECT_EQ(mismatch(*engine, *resumed), 0.0F);
}

}  // namespace primerl::testing
