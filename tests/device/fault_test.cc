// Faults of a CUDA device, caused on purpose. One is an operation that writes to an invalid
// address, in a child process, since that process cannot use its device afterwards. The other is
// another user that allocates all memory, and frees it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <vector>

#include "kernels/cuda/device/device.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/devices/device.h"
#include "kernels/devices/make.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using testing::make_folder;
using testing::TinyModel;

constexpr int kLostExit = 5;
constexpr size_t kMiB = size_t{1} << 20;
constexpr int32_t kManyTokens = 6000;  // more than fits a full CUDA device

bool never() { return false; }

/// Large enough that a long prompt needs new memory: fp32 scores of attention.
const TinyModel kModel{.hidden_size = 256, .num_layers = 4, .head_dim = 64, .max_positions = 8192};

std::unique_ptr<Engine> engine_of(const std::filesystem::path& folder) {
  EngineOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.dtype = "float32";
  options.kv_blocks = 1024;
  options.max_batched_tokens = 8192;
  auto engine = make_torch_engine(options, folder);
  CHECK(engine.ok(), engine.error().text());
  return std::move(engine).value();
}

std::unique_ptr<Learner> learner_of(const std::filesystem::path& folder) {
  LearnerOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  options.dtype = "float32";
  options.micro_batch_tokens = 64;
  auto learner = make_torch_learner(options, folder);
  CHECK(learner.ok(), learner.error().text());
  return std::move(learner).value();
}

SequenceRequest request_of(uint64_t id, int32_t num_prompt_tokens) {
  SequenceRequest made;
  made.id = SequenceId(id);
  made.tenant = TenantSlot(0);
  for (int32_t i = 0; i < num_prompt_tokens; ++i) made.prompt_tokens.push_back(2 + i % 50);
  made.sampling.max_tokens = 4;
  made.sampling.ignore_eos = true;
  made.salt = fmt::format("main:{}", id);
  return made;
}

TrainBatch batch_of(int32_t num_tokens) {
  TrainBatch batch;
  batch.loss = LossKind::kCrossEntropy;
  TrainSample& sample = batch.samples.emplace_back();
  for (int32_t i = 0; i < num_tokens; ++i) sample.tokens.push_back(2 + i % 50);
  sample.loss_mask.assign(sample.tokens.size(), 1);
  return batch;
}

/// Steps until every submitted sequence has ended, or a step fails.
Status run(Engine& engine, std::map<uint64_t, FinishEvent>& ends) {
  for (int step = 0; step < 1000 && engine.has_work(); ++step) {
    RETURN_IF_ERROR(engine.step());
    for (const auto& event : engine.take_prefilled()) RETURN_IF_ERROR(engine.take_over(event.id));
    for (auto& event : engine.take_finished()) ends[event.id.value] = std::move(event);
  }
  return ok();
}

/// An operation whose output address is invalid.
void write_out_of_bounds() {
  void* input = nullptr;
  CHECK(cudaMalloc(&input, kMiB) == cudaSuccess, "no memory for the operation");
  cuda::SwigluArgs args;
  args.rows = 8;
  args.width = 256;
  args.gate_up.data = input;
  args.activated = reinterpret_cast<void*>(uintptr_t{1} << 44);
  CHECK(cuda::swiglu(args, nullptr).is_ok(), "the operation was not launched");
}

/// The last thing that a child does, as in a worker: no destructors run.
[[noreturn]] void leave(const Status& status) {
  std::fprintf(stderr, "%s\n", status.ok() ? "nothing was noticed" : status.error().text().c_str());
  const bool is_lost = !status.ok() && status.error().code() == Code::kDeviceLost;
  ::_exit(is_lost ? kLostExit : 1);
}

class ALostCudaDevice : public ::testing::Test {
 protected:
  // The child starts as a new program, so that the CUDA device of this process stays usable.
  ALostCudaDevice() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

using ALostCudaDeviceDeathTest = ALostCudaDevice;

void break_an_engine() {
  auto engine = engine_of(make_folder(kModel));
  std::map<uint64_t, FinishEvent> ends;
  CHECK(engine->submit(request_of(1, 40)).ok(), "refused");
  CHECK(run(*engine, ends).ok() && ends.at(1).reason == FinishReason::kLength, "it was broken");
  write_out_of_bounds();
  CHECK(engine->submit(request_of(2, 40)).ok(), "refused");
  leave(run(*engine, ends));
}

TEST_F(ALostCudaDeviceDeathTest, IsNoticedByTheNextStepOfAnEngine) {
  EXPECT_EXIT(break_an_engine(), ExitedWithCode(kLostExit),
              "engine step [0-9]+: the device is lost to this process: cudaErrorIllegalAddress "
              ".*illegal memory access.*\n.*CUDA_LAUNCH_BLOCKING=1");
}

void break_a_learner() {
  auto learner = learner_of(make_folder(kModel));
  CHECK(learner->step(batch_of(64), never).ok(), "it was broken");
  write_out_of_bounds();
  const auto report = learner->step(batch_of(64), never);
  leave(report.ok() ? ok() : Status(report.error()));
}

TEST_F(ALostCudaDeviceDeathTest, IsNoticedByTheNextStepOfALearner) {
  EXPECT_EXIT(break_a_learner(), ExitedWithCode(kLostExit),
              "training step \\(after 1 training steps\\): the device is lost to this process: "
              "cudaErrorIllegalAddress");
}

void break_then_apply() {
  TinyModel other = kModel;
  other.seed = 2;
  const auto snapshot = testing::make_snapshot(other, PolicyVersion(1));
  auto engine = engine_of(make_folder(kModel));
  write_out_of_bounds();
  // Few new weights may arrive before the operation ends.
  CHECK(cudaStreamSynchronize(nullptr) != cudaSuccess, "the operation wrote to a valid address");
  const auto applied = engine->apply(*snapshot);
  leave(applied.ok() ? ok() : Status(applied.error()));
}

TEST_F(ALostCudaDeviceDeathTest, IsNoticedWhenNewWeightsCome) {
  EXPECT_EXIT(break_then_apply(), ExitedWithCode(kLostExit),
              "new weights: the device is lost to this process: cudaErrorIllegalAddress");
}

/// Allocates all memory of CUDA device 0 except about `left` bytes.
class Hog {
 public:
  explicit Hog(size_t left) {
    c10::cuda::CUDACachingAllocator::emptyCache();
    for (size_t part = size_t{16} << 30; part >= 16 * kMiB;) {
      size_t free_bytes = 0, total_bytes = 0;
      CHECK(cudaMemGetInfo(&free_bytes, &total_bytes) == cudaSuccess, "the CUDA device is missing");
      void* memory = nullptr;
      if (free_bytes < left + part || cudaMalloc(&memory, part) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        part /= 2;
        continue;
      }
      parts_.push_back(memory);
    }
  }
  ~Hog() {
    for (void* part : parts_) static_cast<void>(cudaFree(part));
  }
  Hog(const Hog&) = delete;
  Hog& operator=(const Hog&) = delete;

 private:
  std::vector<void*> parts_;
};

TEST(AFullDevice, FailsTheSequencesOfOneStepOfAnEngineWithThePlansFigures) {
  auto engine = engine_of(make_folder(kModel));
  std::map<uint64_t, FinishEvent> ends;
  ASSERT_TRUE(engine->submit(request_of(1, 40)).ok());
  ASSERT_TRUE(run(*engine, ends).ok());
  EXPECT_EQ(ends.at(1).reason, FinishReason::kLength) << ends.at(1).detail;
  {
    const Hog hog(64 * kMiB);
    ASSERT_TRUE(engine->submit(request_of(2, kManyTokens)).ok());
    const Status status = run(*engine, ends);
    ASSERT_TRUE(status.ok()) << status.error().text();
  }
  EXPECT_EQ(ends.at(2).reason, FinishReason::kFailed);
  EXPECT_THAT(
      ends.at(2).detail,
      HasSubstr(fmt::format("found no memory for {} rows on cuda:0, of which", kManyTokens)));
  EXPECT_THAT(ends.at(2).detail, HasSubstr("the engine was planned to need"));
  EXPECT_THAT(ends.at(2).detail, HasSubstr("lower 'kv_blocks' or 'max_batched_tokens'"));
  ASSERT_TRUE(engine->submit(request_of(3, kManyTokens)).ok());
  ASSERT_TRUE(run(*engine, ends).ok());
  EXPECT_EQ(ends.at(3).reason, FinishReason::kLength) << ends.at(3).detail;
}

TEST(AFullDevice, FailsOneStepOfALearnerWithThePlansFigures) {
  auto learner = learner_of(make_folder(kModel));
  ASSERT_TRUE(learner->step(batch_of(64), never).ok());
  {
    const Hog hog(64 * kMiB);
    const auto report = learner->step(batch_of(kManyTokens), never);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.error().code(), Code::kExhausted) << report.error().text();
    // A row for each token that predicts another: the last one predicts none.
    EXPECT_THAT(
        report.error().text(),
        HasSubstr(fmt::format("GB of cuda:0 for micro-batches of {} tokens", kManyTokens - 1)));
  }
  const auto report = learner->step(batch_of(kManyTokens), never);
  EXPECT_TRUE(report.ok()) << report.error().text();
}

TEST(AFullDevice, IsRefusedWhenTheEngineIsMade) {
  const auto folder = make_folder(kModel);
  const Hog hog(64 * kMiB);
  EngineOptions options;
  options.device = "cuda:0";
  options.numerics = "fast";
  const auto engine = make_torch_engine(options, folder);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code(), Code::kExhausted);
  EXPECT_THAT(engine.error().text(), HasSubstr("GB of cuda:0, which has"));
}

TEST(TheFirstDevice, IsDescribedByItsDriver) {
  EXPECT_EQ(why_no_cuda_device("cuda:0"), "");
  const auto facts = cuda_device_facts(0);
  ASSERT_TRUE(facts.ok()) << facts.error().text();
  EXPECT_NE(facts->name, "");
  EXPECT_GE(facts->capability_major, kCudaCapabilityMin);
  EXPECT_GT(facts->num_processors, 0);
  EXPECT_GT(facts->free_bytes, 0);
  EXPECT_LE(facts->free_bytes, facts->total_bytes);
  EXPECT_THAT(why_no_cuda_device("cuda:63"), HasSubstr("is not available: this machine has "));
  const auto room = free_memory_on("cuda:0");
  ASSERT_TRUE(room.ok()) << room.error().text();
  EXPECT_EQ(room->total_bytes, facts->total_bytes);
}

TEST(TheFirstDevice, IsAskedForMoreByLargerOptions) {
  const auto folder = make_folder(kModel);
  EngineOptions engine;
  engine.numerics = "fast";
  engine.device = "cuda:0";
  const double less = engine_device_bytes(engine, folder).value().all;
  engine.kv_blocks *= 2;
  EXPECT_GT(engine_device_bytes(engine, folder).value().all, less);
  LearnerOptions learner;
  learner.device = "cuda:0";
  const double small = learner_device_bytes(learner, {}, folder).value().all;
  learner.micro_batch_tokens *= 2;
  EXPECT_GT(learner_device_bytes(learner, {}, folder).value().all, small);
  learner.device = engine.device = "cpu";
  EXPECT_EQ(learner_device_bytes(learner, {}, folder).value().all, 0);
  EXPECT_EQ(engine_device_bytes(engine, folder).value().all, 0);
}

}  // namespace
}  // namespace primerl
