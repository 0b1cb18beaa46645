// Weights that go from a learner to engines without the host: in one process, between processes
// that share a device's memory, and with a publisher that is killed. If there are two CUDA devices,
// the other process uses the second.
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "kernels/cuda/memory/device_memory.h"
#include "kernels/devices/make.h"
#include "kernels/weights/channel.h"
#include "kernels/weights/device_weights.h"
#include "kernels/weights/memory_channel.h"
#include "tests/cpu/tiny_model.h"
#include "tests/device/device_versions.h"
#include "tests/weights/channels.h"
#include "tests/weights/child.h"

namespace primerl {
namespace {

using Snapshot = std::shared_ptr<const WeightSnapshot>;

/// The last of two CUDA devices, else the only one.
int other_device() {
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  return count > 1 ? 1 : 0;
}

class LearnerOnCuda : public ::testing::Test {
 protected:
  std::unique_ptr<Learner> learner(const std::string& dtype, int32_t device_snapshots = 3,
                                   int device_index = 0) {
    LearnerOptions options;
    options.device = fmt::format("cuda:{}", device_index);
    options.numerics = "fast";
    options.dtype = dtype;
    options.optimizer.lr = 1e-2;
    options.device_snapshots = device_snapshots;
    auto made = make_torch_learner(options, folder_);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().text());
    return std::move(made).value();
  }
  std::unique_ptr<Engine> engine(const std::string& dtype) {
    EngineOptions options;
    options.device = "cuda:0";
    options.numerics = "fast";
    options.dtype = dtype;
    options.max_sequence_tokens = 64;
    auto made = make_torch_engine(options, folder_);
    EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().text());
    return std::move(made).value();
  }
  static Snapshot snapshot(Learner& learner, int64_t version) {
    auto taken = learner.snapshot(TenantSlot(0), PolicyVersion(version));
    EXPECT_TRUE(taken.ok()) << (taken.ok() ? "" : taken.error().text());
    return *taken;
  }
  static void train(Learner& learner) {
    TrainBatch batch;
    batch.loss = LossKind::kCrossEntropy;
    TrainSample& sample = batch.samples.emplace_back();
    for (int32_t i = 0; i < 40; ++i) sample.tokens.push_back(i * i % 61);
    sample.loss_mask.assign(sample.tokens.size(), 1);
    const auto report = learner.step(batch, [] { return false; });
    ASSERT_TRUE(report.ok()) << report.error().text();
    ASSERT_FALSE(report->skipped) << report->skip_reason;
  }
  static void submit(Engine& engine, const std::string& salt) {
    SequenceRequest request;
    request.id = SequenceId(1);
    for (int32_t i = 0; i < 20; ++i) request.prompt_tokens.push_back(i * 5 % 61);
    request.sampling = {.temperature = 0, .max_tokens = 24, .ignore_eos = true};
    request.salt = salt;
    EXPECT_TRUE(engine.submit(std::move(request)).ok());
  }
  static void step(Engine& engine) {
    EXPECT_TRUE(engine.step().ok());
    for (const auto& event : engine.take_prefilled()) EXPECT_TRUE(engine.take_over(event.id).ok());
  }
  static FinishEvent end(Engine& engine) {
    while (engine.has_work()) step(engine);
    auto ends = engine.take_finished();
    EXPECT_EQ(ends.size(), 1U);
    return std::move(ends.front());
  }
  static std::vector<float> logprobs(Engine& engine, const std::string& salt) {
    submit(engine, salt);
    return end(engine).logprobs;
  }

  const std::filesystem::path folder_ = testing::make_folder({.head_dim = 64});
};

/// Learner and engine of these types: a copy, a conversion, and one in the other direction.
TEST_F(LearnerOnCuda, AnEngineAppliesTheSameWeightsFromItsDeviceAsFromTheHost) {
  for (const auto& [trained, used] :
       {std::pair("bfloat16", "bfloat16"), std::pair("float32", "float32"),
        std::pair("float32", "bfloat16")}) {
    SCOPED_TRACE(fmt::format("{} to {}", trained, used));
    auto from = learner(trained);
    auto straight = engine(used), by_host = engine(used);
    const auto before = logprobs(*straight, "main:0");
    train(*from);
    const Snapshot taken = snapshot(*from, 1);
    ASSERT_NE(taken->device, nullptr);
    const Snapshot bytes = on_host(taken).value();
    EXPECT_EQ(bytes->device, nullptr);
    EXPECT_TRUE(straight->prepare(taken));  // nothing must be prepared
    ASSERT_TRUE(straight->apply(*taken).ok());
    while (!by_host->prepare(bytes)) ASSERT_TRUE(by_host->step().ok());
    ASSERT_TRUE(by_host->apply(*bytes).ok());
    const auto got = logprobs(*straight, "main:1");
    EXPECT_EQ(got, logprobs(*by_host, "main:1"));
    EXPECT_NE(got, before);
  }
}

/// The copy is launched after the step in progress, whose tokens belong to the older version;
/// through the host the copy is complete before apply() returns.
TEST_F(LearnerOnCuda, AVersionCountsFromTheSameTokenOnWithoutAWait) {
  auto from = learner("bfloat16");
  auto straight = engine("bfloat16"), by_host = engine("bfloat16");
  const auto first = snapshot(*from, 1);
  train(*from);
  const auto second = snapshot(*from, 2);
  std::vector<FinishEvent> ends;
  for (Engine* engine : {straight.get(), by_host.get()}) {
    const bool is_straight = engine == straight.get();
    const auto given = [&](const Snapshot& one) { return is_straight ? one : *on_host(one); };
    ASSERT_TRUE(engine->apply(*given(first)).ok());
    submit(*engine, "main:1");
    for (int i = 0; i < 9; ++i) step(*engine);
    ASSERT_TRUE(engine->apply(*given(second)).ok());
    ends.push_back(end(*engine));
  }
  EXPECT_EQ(ends[0].tokens, ends[1].tokens);
  EXPECT_EQ(ends[0].logprobs, ends[1].logprobs);
  ASSERT_EQ(ends[0].spans.size(), 2U);
  EXPECT_EQ(ends[0].spans, ends[1].spans);
}

/// The second set is read and filled alternately; with only one CUDA device nothing is prepared.
TEST_F(LearnerOnCuda, AVersionOnAnotherDeviceIsFetchedDuringSteps) {
  auto from = learner("bfloat16", 3, other_device());
  auto to = engine("bfloat16"), by_host = engine("bfloat16");
  for (int64_t version = 1; version <= 3; ++version) {
    train(*from);
    const Snapshot taken = snapshot(*from, version);
    ASSERT_NE(taken->device, nullptr);
    EXPECT_EQ(to->prepare(taken), other_device() == 0);
    while (!to->prepare(taken)) step(*to);
    ASSERT_TRUE(to->apply(*taken).ok());
    ASSERT_TRUE(by_host->apply(**on_host(taken)).ok());
    const auto salt = fmt::format("main:{}", version);
    EXPECT_EQ(logprobs(*to, salt), logprobs(*by_host, salt)) << version;
  }
}

TEST_F(LearnerOnCuda, AnEngineWithoutWorkGivesABufferBack) {
  auto from = learner("bfloat16", 1);
  auto to = engine("bfloat16");
  for (int64_t version = 1; version <= 3; ++version) {
    Snapshot taken = snapshot(*from, version);
    while (taken->device == nullptr) taken = snapshot(*from, version);  // it is still being opened
    ASSERT_TRUE(to->apply(*taken).ok());
  }
}

TEST_F(LearnerOnCuda, ASnapshotStaysWhileTheLearnerContinues) {
  auto from = learner("bfloat16");
  const Snapshot first = snapshot(*from, 1);
  const auto then = tensors_on_host(*first).value();
  for (int64_t version = 2; version <= 6; ++version) {
    train(*from);
    const Snapshot taken = snapshot(*from, version);
    ASSERT_NE(taken->device, nullptr);
  }
  const auto now = tensors_on_host(*first).value();
  const auto last = tensors_on_host(*snapshot(*from, 7)).value();
  ASSERT_EQ(now.size(), then.size());
  bool has_changed = false;
  for (size_t i = 0; i < now.size(); ++i) {
    EXPECT_EQ(now[i].bytes, then[i].bytes) << now[i].name;
    has_changed = has_changed || !(last[i].bytes == then[i].bytes);
  }
  EXPECT_TRUE(has_changed);
}

TEST_F(LearnerOnCuda, WithoutAFreeBufferASnapshotGoesThroughTheHostAndIsTheSame) {
  auto from = learner("bfloat16", 2);
  auto to = engine("bfloat16");
  std::vector<Snapshot> held = {snapshot(*from, 1), snapshot(*from, 2)};
  EXPECT_NE(held.back()->device, nullptr);
  const Snapshot one_more = snapshot(*from, 3);
  EXPECT_EQ(one_more->device, nullptr);
  const auto same = tensors_on_host(*held.back()).value();
  ASSERT_EQ(one_more->tensors.size(), same.size());
  for (size_t i = 0; i < same.size(); ++i) {
    EXPECT_EQ(one_more->tensors[i].type, same[i].type);
    EXPECT_EQ(one_more->tensors[i].bytes, same[i].bytes) << same[i].name;
  }
  const auto channel = make_memory_channel(3);
  for (const Snapshot& each : held) ASSERT_TRUE(channel->publish(each).ok());
  const Status mixed = channel->publish(one_more);  // the same tensors, on host or device
  ASSERT_TRUE(mixed.ok()) << mixed.error().text();
  ASSERT_TRUE(to->apply(*one_more).ok());
  held.erase(held.begin());
  EXPECT_EQ(snapshot(*from, 4)->device, nullptr);  // the channel still has it
  EXPECT_EQ(snapshot(*learner("bfloat16", 0), 5)->device, nullptr);
}

/// So that engines open them before their first step; a released buffer is reused.
TEST_F(LearnerOnCuda, TheFirstSnapshotMakesAllBuffers) {
  auto from = learner("bfloat16");
  Snapshot taken = snapshot(*from, 1);
  ASSERT_EQ(taken->device->next().size(), 2U);
  std::set<const void*> known = {taken->device->buffer().data()};
  for (const auto& each : taken->device->next()) known.insert(each.lock()->data());
  EXPECT_EQ(known.size(), 3U);
  for (int64_t version = 2; version <= 6; ++version) {
    taken = snapshot(*from, version);
    EXPECT_TRUE(known.contains(taken->device->buffer().data()));
  }
  EXPECT_TRUE(snapshot(*learner("bfloat16", 1), 1)->device->next().empty());
}

class CudaProcesses : public ::testing::Test {
 protected:
  CudaProcesses() {
    setup_ = channel_setup(testing::scratch_folder("channel"));
    setup_.devices = make_cuda_memory(0);
  }
  /// A process that publishes versions [0, count) from its CUDA device, then waits.
  std::vector<std::string> publisher(int64_t count) const {
    return {"publish", setup_.run_folder.string(), std::to_string(other_device()),
            std::to_string(count)};
  }

  ChannelSetup setup_;
};

TEST_F(CudaProcesses, AVersionComesFromTheDeviceOfAnother) {
  Child other(publisher(5));
  for (int64_t version = 0; version < 5; ++version)
    ASSERT_EQ(other.line(), fmt::format("published {} on the device", version));
  const auto channel = make_shm_channel(setup_).value();
  const auto fetched = fetch_opened(*channel, {}, 4);
  ASSERT_TRUE(fetched.ok()) << fetched.error().text();
  ASSERT_NE((*fetched)->device, nullptr) << "sharing was refused";
  EXPECT_EQ((*fetched)->device->buffer().device_index(), other_device());
  EXPECT_TRUE(is_whole_device_version(**fetched, 4));
  // A retained snapshot stays valid after its process ended.
  other.kill();
  other.wait();
  EXPECT_TRUE(is_whole_device_version(**fetched, 4));
  const auto lost = fetch_opened(*channel, {}, 3);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.error().code(), Code::kUnavailable);
  // The next publisher publishes it again, in its own memory.
  Child next(publisher(5));
  for (int64_t version = 0; version < 5; ++version)
    ASSERT_EQ(next.line(), fmt::format("published {} on the device", version));
  const auto again = fetch_opened(*channel, {}, 4);
  ASSERT_TRUE(again.ok()) << again.error().text();
  EXPECT_NE((*again)->device->buffer().data(), (*fetched)->device->buffer().data());
  EXPECT_TRUE(is_whole_device_version(**again, 4));
}

TEST_F(CudaProcesses, BuffersAreReusedAndStayOpenWhileAReceiverFollows) {
  std::set<const void*> places;
  const auto channel = make_shm_channel(setup_).value();
  Child other(publisher(40));
  for (PolicyVersion seen; seen < PolicyVersion(39);) {
    const PolicyVersion newest = channel->newest({});
    if (newest == seen) continue;
    const auto fetched = fetch_opened(*channel, {}, newest.value);
    // the publisher was faster
    if (!fetched.ok() && fetched.error().code() == Code::kNotFound) continue;
    ASSERT_TRUE(fetched.ok()) << fetched.error().text();
    EXPECT_TRUE(is_whole_device_version(**fetched, newest.value)) << newest.value;
    if ((*fetched)->device != nullptr) places.insert((*fetched)->device->buffer().data());
    seen = newest;
  }
  EXPECT_EQ(other.finish(), 0);
  EXPECT_LE(places.size(), 3U);
  EXPECT_FALSE(places.empty());
}

}  // namespace
}  // namespace primerl
