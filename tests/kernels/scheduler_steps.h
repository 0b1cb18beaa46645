/// Code that the tests of BatchScheduler share: requests, and steps whose tokens the test chooses.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/batch_scheduler.h"

namespace primerl {

inline BatchScheduler make_scheduler(EngineOptions options) {
  if (options.max_sequence_tokens == 0) options.max_sequence_tokens = 100;
  return BatchScheduler({options, 50, {1}});
}

/// Prompt tokens are 10, 11, ..., 49, 10, ...; without `salt` its blocks are not shared.
inline SequenceRequest make_request(uint64_t id, int32_t num_prompt_tokens, int32_t max_tokens,
                                    const std::string& salt = "") {
  SequenceRequest made;
  made.id = SequenceId(id);
  made.salt = salt.empty() ? std::to_string(id) : salt;
  for (int32_t i = 0; i < num_prompt_tokens; ++i) made.prompt_tokens.push_back(10 + i % 40);
  made.sampling.max_tokens = max_tokens;
  return made;
}

/// First and last seed of the random lives in a test. PRIMERL_SEED: only this one; PRIMERL_LIVES:
/// more of them.
inline std::pair<uint64_t, uint64_t> seeds_of_lives() {
  const char* const one = std::getenv("PRIMERL_SEED");
  if (one != nullptr) return {std::stoull(one), std::stoull(one)};
  const char* const more = std::getenv("PRIMERL_LIVES");
  return {1, more == nullptr ? 3000 : std::stoull(more)};
}

/// One step in which every sampled token is `token`; an empty plan if there is no work.
inline StepPlan take_step(BatchScheduler& scheduler, int32_t token = 7) {
  StepPlan plan;
  if (!scheduler.plan(plan)) return plan;
  for (const auto& sample : plan.samples) scheduler.accept(*sample.sequence, token, -1);
  scheduler.finish_step();
  return plan;
}

inline void take_over_all(BatchScheduler& scheduler) {
  for (const auto& event : scheduler.take_prefilled())
    ASSERT_TRUE(scheduler.take_over(event.id).ok());
}

/// Steps until there is no work left.
inline std::vector<FinishEvent> run_to_end(BatchScheduler& scheduler, int steps_max = 10'000) {
  for (int i = 0; i < steps_max && scheduler.has_work(); ++i) {
    take_step(scheduler);
    take_over_all(scheduler);
  }
  EXPECT_FALSE(scheduler.has_work());
  return scheduler.take_finished();
}

inline void expect_all_free(const BatchScheduler& scheduler) {
  EXPECT_EQ(scheduler.state().num_free_blocks, scheduler.state().num_blocks);
}

}  // namespace primerl
