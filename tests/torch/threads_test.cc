// Engine and learner agree to the bit on any number of compute threads.
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "tests/torch/tiny_model.h"

namespace primerl {
namespace {

using Logprobs = std::map<uint64_t, std::vector<float>>;

/// Large enough that every product is shared out (decoder.cc, kWorkPerThread).
testing::TinyModel model() {
  testing::TinyModel model;
  model.hidden_size = 256;
  model.vocab_size = 1000;
  model.deviation = 0.05;
  return model;
}

struct Generated {
  std::map<uint64_t, std::vector<int32_t>> tokens;  // prompt and completion
  Logprobs logprobs;                                // of the completion
};

constexpr size_t kPrompt = 3;

/// `num_sequences` at a time, on a thread of its own: the number of compute threads is the
/// thread's.
Generated generate(const std::filesystem::path& folder, int threads, uint64_t num_sequences) {
  Generated all;
  std::jthread([&] {
    EngineOptions options;
    options.threads = threads;
    auto engine = make_torch_engine(options, folder).value();
    for (uint64_t i = 1; i <= num_sequences; ++i) {
      SequenceRequest request;
      request.id = SequenceId(i);
      request.prompt_tokens = {static_cast<int32_t>(2 + i), 3, 4};
      request.seed = i;
      request.sampling.max_tokens = 12;
      request.sampling.ignore_eos = true;
      all.tokens[i] = request.prompt_tokens;
      CHECK(engine->submit(request).ok(), "refused");
    }
    while (engine->has_work()) {
      CHECK(engine->step().ok(), "a step failed");
      for (const auto& event : engine->take_prefilled())
        CHECK(engine->take_over(event.id).ok(), "nothing to take over");
      for (const auto& event : engine->take_finished()) {
        auto& tokens = all.tokens[event.id.value];
        tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
        all.logprobs[event.id.value] = event.logprobs;
      }
    }
  }).join();
  return all;
}

Logprobs score(const std::filesystem::path& folder, int threads, const Generated& generated) {
  Logprobs all;
  std::jthread([&] {
    LearnerOptions options;
    options.threads = threads;
    auto learner = make_torch_learner(options, folder).value();
    for (const auto& [id, tokens] : generated.tokens) {
      const auto whole = learner->score(tokens).value();  // of each token but the first
      all[id].assign(whole.end() - static_cast<std::ptrdiff_t>(tokens.size() - kPrompt),
                     whole.end());
    }
  }).join();
  return all;
}

TEST(Threads, LeaveEngineAndLearnerEqualToTheBit) {
  const auto folder = testing::make_folder(model());
  const Generated alone = generate(folder, 1, 1);
  for (const int engine_threads : {1, 2, 4})
    for (const uint64_t num_sequences : {1, 2, 9, 33}) {
      const Generated together = generate(folder, engine_threads, num_sequences);
      ASSERT_EQ(together.logprobs.size(), num_sequences);
      EXPECT_EQ(together.tokens.at(1), alone.tokens.at(1));
      EXPECT_EQ(together.logprobs.at(1), alone.logprobs.at(1));
      for (const int learner_threads : {1, 2, 4})
        EXPECT_EQ(score(folder, learner_threads, together), together.logprobs)
            << engine_threads << " and " << learner_threads << " threads, " << num_sequences
            << " sequences";
    }
}

}  // namespace
}  // namespace primerl
