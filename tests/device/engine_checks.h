/// Engines on a CUDA device compared with the CPU's: requests, runs, and results that must agree.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/devices/make.h"

namespace primerl::device_test {

using Snapshots = std::vector<std::shared_ptr<const WeightSnapshot>>;
using Ends = std::map<uint64_t, FinishEvent>;

// Differences of fp32 log-probabilities when GEMMs add in another order, at |logit| of about 10.
constexpr double kLogprobTolerance = 2e-4;
constexpr int kStepsMax = 1'000'000;  // per run; some steps wait for an adapter

inline EngineOptions options_on(const std::string& device) {
  EngineOptions options;
  options.device = device;
  if (device != "cpu") options.numerics = "fast";
  options.dtype = "float32";
  options.max_sequence_tokens = 200;
  return options;
}

inline void apply(Engine& engine, const WeightSnapshot& snapshot) {
  const auto applied = engine.apply(snapshot);
  ASSERT_TRUE(applied.ok()) << applied.error().text();
}

inline std::unique_ptr<Engine> made(const EngineOptions& options,
                                    const std::filesystem::path& folder,
                                    const Snapshots& applied = {}) {
  auto engine = make_torch_engine(options, folder);
  CHECK(engine.ok(), engine.error().text());
  for (const auto& snapshot : applied) apply(**engine, *snapshot);
  return std::move(engine).value();
}

inline SequenceRequest request_of(uint64_t id, int32_t num_prompt, int32_t max_tokens,
                                  double temperature, uint32_t tenant = 0) {
  SequenceRequest made;
  made.id = SequenceId(id);
  made.tenant = TenantSlot(tenant);
  for (int32_t i = 0; i < num_prompt; ++i)
    made.prompt_tokens.push_back(
        static_cast<int32_t>((id * 7 + static_cast<uint64_t>(i) * 3) % 61));
  made.sampling.max_tokens = max_tokens;
  made.sampling.temperature = temperature;
  made.sampling.ignore_eos = true;
  made.seed = 100 + id;
  made.salt = "main:1";
  return made;
}

/// Alternating between `num_tenants` tenants, with log-probabilities of their prompts.
inline std::vector<SequenceRequest> long_prompts(uint32_t num_tenants) {
  std::vector<SequenceRequest> all;
  for (uint32_t number = 0; number < 9; ++number) {
    all.push_back(request_of(number, number % 3 == 0 ? 150 : 40, 5, 1, number % num_tenants));
    all.back().sampling.prompt_logprobs = true;
  }
  return all;
}

inline void take_step(Engine& engine, Ends& ends) {
  ASSERT_TRUE(engine.step().ok());
  for (const auto& event : engine.take_prefilled()) ASSERT_TRUE(engine.take_over(event.id).ok());
  for (auto& event : engine.take_finished()) ends[event.id.value] = std::move(event);
}

inline Ends run_all(Engine& engine, const std::vector<SequenceRequest>& requests) {
  Ends ends;
  size_t next = 0;
  for (int step = 0; step < kStepsMax && (next < requests.size() || engine.has_work()); ++step) {
    for (int i = 0; i < 3 && next < requests.size(); ++i) {
      const Status submitted = engine.submit(requests[next++]);
      EXPECT_TRUE(submitted.ok()) << submitted.error().text();
    }
    take_step(engine, ends);
  }
  EXPECT_EQ(ends.size(), requests.size());
  return ends;
}

inline void expect_near(const std::vector<float>& got, const std::vector<float>& want,
                        double tolerance, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], tolerance) << what << ", number " << i;
}

inline void expect_alike(const FinishEvent& end, const FinishEvent& wanted) {
  const std::string what = "sequence " + std::to_string(wanted.id.value);
  EXPECT_EQ(end.reason, wanted.reason) << what << ": " << end.detail;
  EXPECT_EQ(end.tokens, wanted.tokens) << what;
  expect_near(end.logprobs, wanted.logprobs, kLogprobTolerance, what);
  expect_near(end.prompt_logprobs, wanted.prompt_logprobs, kLogprobTolerance, what + ", prompt");
  EXPECT_EQ(std::vector(end.kept.bytes().begin(), end.kept.bytes().end()),
            std::vector(wanted.kept.bytes().begin(), wanted.kept.bytes().end()))
      << what;
  ASSERT_EQ(end.top_logprobs.size(), wanted.top_logprobs.size()) << what;
  for (size_t i = 0; i < end.top_logprobs.size(); ++i)
    EXPECT_NEAR(end.top_logprobs[i].logprob, wanted.top_logprobs[i].logprob, kLogprobTolerance)
        << what << ", top " << i;
}

inline void expect_alike(const Ends& got, const Ends& want) {
  for (const auto& [id, wanted] : want) {
    ASSERT_TRUE(got.contains(id));
    expect_alike(got.at(id), wanted);
  }
}

}  // namespace primerl::device_test
