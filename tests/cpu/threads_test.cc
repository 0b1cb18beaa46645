// Engine and learner have the same bits for any number of compute threads.
#include <gtest/gtest.h>

#include <latch>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "kernels/common/boundary.h"
#include "kernels/common/parallel.h"
#include "kernels/cpu/learner/learner.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using Logprobs = std::map<uint64_t, std::vector<float>>;

/// Large enough that every GEMM is divided over threads (parallel.h, kWorkPerThread).
testing::TinyModel model(const std::string& model_type) {
  testing::TinyModel model;
  model.model_type = model_type;
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

/// `num_sequences` at a time, on a new thread: the number of compute threads belongs to the thread.
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
      const auto whole =
          learner->score(TenantSlot(0), tokens).value();  // of each token but the first
      all[id].assign(whole.end() - static_cast<std::ptrdiff_t>(tokens.size() - kPrompt),
                     whole.end());
    }
  }).join();
  return all;
}

class Threads : public ::testing::TestWithParam<std::string> {};

TEST_P(Threads, LeaveEngineAndLearnerEqualToTheBit) {
  const auto folder = testing::make_folder(model(GetParam()));
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

// Without OpenMP in this build the tests below would compare one thread with itself.
TEST(Share, GivesEveryThreadWork) {
  std::jthread([] {
    use_threads(2);
    std::mutex guard;
    std::set<std::thread::id> tasks, parts;
    std::latch both(2);  // a quick thread must not run both
    share_tasks(2, int64_t{1} << 30, [&](int64_t) {
      {
        const std::scoped_lock lock(guard);
        tasks.insert(std::this_thread::get_id());
      }
      both.arrive_and_wait();
    });
    share(2, int64_t{1} << 30, [&](int64_t, int64_t) {
      const std::scoped_lock lock(guard);
      parts.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(tasks.size(), 2U);
    EXPECT_EQ(parts.size(), 2U);
  }).join();
}

TrainBatch batch() {
  TrainBatch made;
  for (int32_t i = 0; i < 24; ++i) {
    TrainSample& sample = made.samples.emplace_back();
    for (int32_t t = 0; t < 20 + i; ++t) {
      const bool is_sampled = t >= 6;
      sample.tokens.push_back(is_sampled ? (i * 37 + t * 101) % 1000 : i / 4 + t);
      sample.loss_mask.push_back(is_sampled ? 1 : 0);
      sample.logprobs.push_back(is_sampled ? -7.0F : 0.0F);
      sample.advantages.push_back(is_sampled ? static_cast<float>(i % 3) - 1.2F : 0.0F);
    }
  }
  return made;
}

struct Trained {
  TrainReport report;
  std::vector<std::byte> weights, gradients;
};

Trained train(const std::filesystem::path& folder, const LearnerOptions& options) {
  Trained trained;
  std::jthread([&] {
    auto made = make_torch_learner(options, folder).value();
    auto& learner = dynamic_cast<TorchLearner&>(*made);
    for (int step = 0; step < 2; ++step)
      trained.report = learner.step(batch(), [] { return false; }).value();
    const auto add = [](const std::vector<WeightTensor>& tensors, std::vector<std::byte>& to) {
      for (const auto& tensor : tensors)
        to.insert(to.end(), tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
    };
    add(learner.snapshot(TenantSlot(0), PolicyVersion(1)).value()->tensors, trained.weights);
    add(learner.gradients(), trained.gradients);
  }).join();
  return trained;
}

TEST_P(Threads, LeaveTrainingStepsEqualToTheBit) {
  const auto folder = testing::make_folder(model(GetParam()));
  LearnerOptions options;
  options.micro_batch_tokens = 400;
  options.optimizer.lr = 1e-3;
  options.threads = 1;
  const Trained alone = train(folder, options);
  EXPECT_GT(alone.report.num_micro_batches, 1);
  for (const int threads : {2, 3, 4}) {
    options.threads = threads;
    const Trained shared = train(folder, options);
    EXPECT_EQ(shared.report.loss, alone.report.loss) << threads;
    EXPECT_EQ(shared.report.grad_norm, alone.report.grad_norm) << threads;
    EXPECT_TRUE(shared.gradients == alone.gradients) << threads;
    EXPECT_TRUE(shared.weights == alone.weights) << threads;
  }
}

TEST_P(Threads, RecomputationIsEqualToTheBit) {
  const auto folder = testing::make_folder(model(GetParam()));
  LearnerOptions options;
  options.threads = 2;
  const Trained kept = train(folder, options);
  for (const char* recompute : {"keep_attention", "full"}) {
    options.recompute = recompute;
    const Trained again = train(folder, options);
    EXPECT_TRUE(again.gradients == kept.gradients) << recompute;
    EXPECT_TRUE(again.weights == kept.weights) << recompute;
  }
}

/// Fast numerics change only the order of additions.
TEST_P(Threads, FastNumericsStayNearInvariantOnes) {
  const auto folder = testing::make_folder(model(GetParam()));
  LearnerOptions options;
  options.threads = 1;
  const Trained invariant = train(folder, options);
  options.numerics = "fast";
  const Trained fast = train(folder, options);
  EXPECT_NEAR(fast.report.loss, invariant.report.loss, 1e-5);
  EXPECT_NEAR(fast.report.grad_norm, invariant.report.grad_norm, 1e-4 * invariant.report.grad_norm);
  EngineOptions engine;
  engine.numerics = "fast";
  auto made = make_torch_engine(engine, folder);
  ASSERT_TRUE(made.ok()) << made.error().text();
}

INSTANTIATE_TEST_SUITE_P(Torch, Threads, ::testing::Values("qwen3", "qwen3_moe", "glm4_moe"),
                         [](const auto& one) { return one.param; });

}  // namespace
}  // namespace primerl
