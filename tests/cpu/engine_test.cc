#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <vector>

#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using testing::make_folder;
using testing::TinyModel;

std::unique_ptr<Engine> make_engine(const std::filesystem::path& folder,
                                    const EngineOptions& options = {}) {
  auto engine = make_torch_engine(options, folder);
  CHECK(engine.ok(), engine.error().text());
  return std::move(engine).value();
}

std::string refusal(const EngineOptions& options, const std::filesystem::path& folder) {
  const auto engine = make_torch_engine(options, folder);
  return engine.ok() ? "" : engine.error().text();
}

SequenceRequest request(uint64_t id, int32_t num_prompt_tokens = 9, int32_t max_tokens = 20) {
  SequenceRequest made;
  made.id = SequenceId(id);
  for (int32_t i = 0; i < num_prompt_tokens; ++i)
    made.prompt_tokens.push_back(static_cast<int32_t>(2 + (id * 11 + i * i) % 59));
  made.sampling.max_tokens = max_tokens;
  made.sampling.ignore_eos = true;
  made.seed = id;
  return made;
}

std::map<uint64_t, FinishEvent> run(Engine& engine) {
  std::map<uint64_t, FinishEvent> ends;
  while (engine.has_work()) {
    CHECK(engine.step().ok(), "a step failed");
    for (const auto& event : engine.take_prefilled())
      CHECK(engine.take_over(event.id).ok(), "nothing to take over");
    for (auto& event : engine.take_finished()) ends[event.id.value] = std::move(event);
  }
  return ends;
}

TEST(CpuEngine, RefusesAFolderWithoutAModel) {
  const auto folder = testing::scratch_folder("empty");
  EXPECT_THAT(refusal({}, folder), HasSubstr("config.json"));
  testing::write_config({}, folder);
  EXPECT_THAT(refusal({}, folder), HasSubstr("model.safetensors"));
}

TEST(CpuEngine, SaysHowMuchMemoryItsBlocksWouldNeed) {
  const auto folder = make_folder({});
  for (const int32_t block_size : {16, 1024}) {  // up to the largest number of tokens
    const int32_t kv_blocks = INT32_MAX / block_size;
    EngineOptions options;
    options.kv_blocks = kv_blocks;
    options.block_size = block_size;
    const std::string text = refusal(options, folder);
    EXPECT_THAT(text, HasSubstr(fmt::format("no memory for {} KV blocks: they need ", kv_blocks)));
    EXPECT_THAT(text, HasSubstr("lower 'kv_blocks'"));
    EXPECT_THAT(text, ::testing::Not(HasSubstr("frame #")));
  }
}

TEST(CpuEngine, RefusesWeightsThatAreNotTheModels) {
  const auto folder = make_folder({});
  testing::write_config({.num_layers = 1}, folder);
  EXPECT_THAT(refusal({}, folder), HasSubstr("'model.layers.1"));
  testing::write_config({.num_layers = 3}, folder);
  EXPECT_THAT(refusal({}, folder), HasSubstr("'model.layers.2.input_layernorm.weight'"));
  testing::write_config({.hidden_size = 40}, folder);
  EXPECT_THAT(refusal({}, folder), HasSubstr("[61, 32], the model needs [61, 40]"));
}

TEST(CpuEngine, RefusesOptionsOneBelowTheirBound) {
  const auto folder = make_folder({});
  EXPECT_EQ(refusal({.kv_blocks = 1,
                     .block_size = 1,
                     .max_running = 1,
                     .max_waiting = 1,
                     .max_batched_tokens = 1},
                    folder),
            "");
  EXPECT_THAT(refusal({.kv_blocks = 0}, folder), HasSubstr("kv_blocks"));
  EXPECT_THAT(refusal({.block_size = 0}, folder), HasSubstr("block_size"));
  EXPECT_THAT(refusal({.max_running = 0}, folder), HasSubstr("max_running"));
  EXPECT_THAT(refusal({.max_waiting = 0}, folder), HasSubstr("max_waiting"));
  EXPECT_THAT(refusal({.max_batched_tokens = 0}, folder), HasSubstr("max_batched_tokens"));
  EXPECT_THAT(refusal({.kv_blocks = 8, .block_size = 1 << 28}, folder), HasSubstr("2147483647"));
  EXPECT_EQ(refusal({.max_sequence_tokens = 256}, folder), "");
  EXPECT_THAT(refusal({.max_sequence_tokens = 257}, folder), HasSubstr("256 positions"));
}

/// Every weight of `snapshot` is NaN.
std::shared_ptr<const WeightSnapshot> broken(const WeightSnapshot& snapshot) {
  auto made = std::make_shared<WeightSnapshot>(snapshot);
  for (auto& tensor : made->tensors) {
    // All ones is a quiet NaN in fp32 and in bf16.
    tensor.bytes = Blob(std::vector<std::byte>(tensor.bytes.size(), std::byte{0xff}));
  }
  return made;
}

/// An update of NaN weights fails only the running sequences, with the version in the error. All
/// blocks are freed, and good weights give what a new engine gives, under the same salt.
TEST(CpuEngine, RecoversFromNanWeights) {
  const auto folder = make_folder({});
  const EngineOptions options = {.kv_blocks = 40, .block_size = 4, .max_batched_tokens = 8};
  const auto good = testing::make_snapshot({.seed = 2}, PolicyVersion(2));
  const auto bad = broken(*testing::make_snapshot({.seed = 2}, PolicyVersion(1)));
  const auto submit = [](Engine& engine) {
    for (uint64_t id = 1; id <= 3; ++id) {
      auto one = request(id, 21, 10);
      one.salt = "main:0";
      CHECK(engine.submit(one).ok(), "an engine refused a request");
    }
  };
  auto fresh = make_engine(folder, options);
  ASSERT_TRUE(fresh->apply(*good).ok());
  submit(*fresh);
  const auto expected = run(*fresh);
  auto engine = make_engine(folder, options);
  // In the middle of prompts and of completions.
  submit(*engine);
  for (int i = 0; i < 6; ++i) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
  }
  ASSERT_TRUE(engine->apply(*bad).ok());
  const auto failed = run(*engine);
  ASSERT_EQ(failed.size(), 3U);
  for (const auto& [id, end] : failed) {
    EXPECT_EQ(end.reason, FinishReason::kFailed) << id;
    EXPECT_THAT(end.detail, HasSubstr("are NaN or infinite, under the weights of version 1"));
  }
  EXPECT_EQ(engine->state().num_free_blocks, engine->state().num_blocks);
  submit(*engine);  // and again from the first token on
  for (const auto& [id, end] : run(*engine)) EXPECT_EQ(end.reason, FinishReason::kFailed) << id;
  ASSERT_TRUE(engine->apply(*good).ok());
  submit(*engine);
  const auto after = run(*engine);
  ASSERT_EQ(after.size(), expected.size());
  for (const auto& [id, end] : after) {
    EXPECT_EQ(end.tokens, expected.at(id).tokens) << id << " " << end.detail;
    EXPECT_EQ(end.logprobs, expected.at(id).logprobs) << id;
  }
  EXPECT_EQ(engine->state().num_free_blocks, engine->state().num_blocks);
}

TEST(CpuEngine, NeitherBlocksNorBatchesNorChunksChangeATokenOrALogprob) {
  const auto folder = make_folder({});
  const std::vector<EngineOptions> variants = {
      {},
      {.block_size = 1},
      {.kv_blocks = 40, .block_size = 7},
      {.max_running = 1},
      {.max_running = 3, .max_batched_tokens = 5},
      {.max_batched_tokens = 11},
  };
  std::map<uint64_t, FinishEvent> expected;
  for (const auto& options : variants) {
    auto engine = make_engine(folder, options);
    for (uint64_t id = 1; id <= 12; ++id)
      ASSERT_TRUE(engine->submit(request(id, static_cast<int32_t>(1 + id * 2))).ok());
    auto ends = run(*engine);
    ASSERT_EQ(ends.size(), 12U);
    if (expected.empty()) expected = ends;
    for (const auto& [id, end] : ends) {
      EXPECT_EQ(end.tokens, expected[id].tokens) << id;
      EXPECT_EQ(end.logprobs, expected[id].logprobs) << id;
    }
  }
}

TEST(CpuEngine, SharingAPromptChangesNoTokenAndNoLogprob) {
  const auto folder = make_folder({});
  EngineOptions options{.block_size = 4, .max_batched_tokens = 7};
  auto engine = make_engine(folder, options);
  options.prefix_cache = false;
  auto forgetful = make_engine(folder, options);
  const auto member = [](uint64_t id) {
    auto made = request(7, 10, 15);
    made.id = SequenceId(id);
    made.seed = id;
    return made;
  };
  std::map<uint64_t, FinishEvent> alone;
  for (uint64_t id = 1; id <= 6; ++id) {
    ASSERT_TRUE(forgetful->submit(member(id)).ok());
    alone[id] = run(*forgetful).at(id);
    EXPECT_EQ(alone[id].num_cached_tokens, 0) << "nothing is kept";
  }
  for (uint64_t id = 1; id <= 5; ++id) ASSERT_TRUE(engine->submit(member(id)).ok());
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->submit(member(6)).ok());
  const auto together = run(*engine);
  ASSERT_EQ(together.size(), 6U);
  for (const auto& [id, end] : together) {
    EXPECT_EQ(end.tokens, alone[id].tokens) << id;
    EXPECT_EQ(end.logprobs, alone[id].logprobs) << id;
    EXPECT_EQ(end.num_cached_tokens, id == 1 ? 0 : id == 6 ? 8 : 9) << id;
  }
  EXPECT_EQ(engine->state().num_free_blocks, engine->state().num_blocks);
}

TEST(CpuEngine, AfterApplyingWeightsItIsAnEngineMadeWithThem) {
  auto engine = make_engine(make_folder({.seed = 1}));
  auto fresh = make_engine(make_folder({.seed = 2}, "other"));
  ASSERT_TRUE(engine->submit(request(1)).ok());
  const auto before = run(*engine);
  const auto applied = engine->apply(*testing::make_snapshot({.seed = 2}, PolicyVersion(1)));
  ASSERT_TRUE(applied.ok()) << applied.error().text();
  EXPECT_EQ(*applied, 2U + 2 * 11);
  ASSERT_TRUE(engine->submit(request(1)).ok());
  ASSERT_TRUE(fresh->submit(request(1)).ok());
  const auto after = run(*engine), expected = run(*fresh);
  EXPECT_EQ(after.at(1).tokens, expected.at(1).tokens);
  EXPECT_EQ(after.at(1).logprobs, expected.at(1).logprobs);
  EXPECT_NE(after.at(1).tokens, before.at(1).tokens);
}

/// A model that is prepared in about ten parts.
const TinyModel kLargerModel{
    .model_type = "qwen3", .vocab_size = 4099, .hidden_size = 512, .num_layers = 3};

TEST(CpuEngine, PreparesNewWeightsInPartsWhileStepsContinue) {
  const auto folder = make_folder(kLargerModel);
  auto engine = make_engine(folder), undisturbed = make_engine(folder);
  TinyModel next = kLargerModel;
  next.seed = 2;
  auto fresh = make_engine(make_folder(next, "other"));
  const auto snapshot = testing::make_snapshot(next, PolicyVersion(1));
  for (auto* const each : {engine.get(), undisturbed.get()})
    ASSERT_TRUE(each->submit(request(1)).ok());
  int num_parts = 1;
  for (; !engine->prepare(snapshot); ++num_parts) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
  }
  EXPECT_GE(num_parts, 6);
  EXPECT_LE(num_parts, 19) << "the sequence is not at its end";
  const auto before = run(*engine), expected_before = run(*undisturbed);
  EXPECT_EQ(before.at(1).tokens, expected_before.at(1).tokens);
  EXPECT_EQ(before.at(1).logprobs, expected_before.at(1).logprobs);
  EXPECT_EQ(engine->apply_prepared(snapshot).value().value(), 2U + 3 * 11);
  for (auto* const each : {engine.get(), fresh.get()}) ASSERT_TRUE(each->submit(request(2)).ok());
  const auto after = run(*engine), expected = run(*fresh);
  EXPECT_EQ(after.at(2).tokens, expected.at(2).tokens);
  EXPECT_EQ(after.at(2).logprobs, expected.at(2).logprobs);
}

TEST(CpuEngine, APartlyPreparedSnapshotIsAppliedWhole) {
  auto engine = make_engine(make_folder(kLargerModel));
  const auto version = [](int64_t number) {
    TinyModel model = kLargerModel;
    model.seed = number;
    return testing::make_snapshot(model, PolicyVersion(number));
  };
  const auto second = version(2), third = version(3), fourth = version(4), fifth = version(5);
  const auto is_now = [&](int64_t number) {
    TinyModel model = kLargerModel;
    model.seed = number;
    auto fresh = make_engine(make_folder(model, "fresh"));
    for (auto* const each : {engine.get(), fresh.get()})
      ASSERT_TRUE(each->submit(request(static_cast<uint64_t>(number))).ok());
    EXPECT_EQ(run(*engine).begin()->second.logprobs, run(*fresh).begin()->second.logprobs)
        << number;
  };
  EXPECT_FALSE(engine->prepare(second));
  ASSERT_TRUE(engine->apply(*second).ok());
  is_now(2);
  EXPECT_FALSE(engine->prepare(fourth));
  EXPECT_TRUE(engine->prepare(third)) << "an older one has to be applied as it is";
  ASSERT_TRUE(engine->apply(*third).ok());
  is_now(3);
  EXPECT_FALSE(engine->prepare(fifth)) << "a newer one takes the place of what was begun";
  ASSERT_TRUE(engine->apply(*fourth).ok());
  is_now(4);
  while (!engine->prepare(fifth)) continue;
  ASSERT_TRUE(engine->apply(*fifth).ok());
  is_now(5);
}

/// While it exists, this process gets at most some hundred KiB of new memory at a time.
class NoMoreMemory {
 public:
  NoMoreMemory() {
    uint64_t num_pages = 0;
    std::ifstream("/proc/self/statm") >> num_pages;
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit lower{.rlim_cur = num_pages * static_cast<uint64_t>(::getpagesize()) + (1 << 20),
                       .rlim_max = before_.rlim_max};
    taken_.reserve(size_t{1} << 16);
    EXPECT_EQ(::setrlimit(RLIMIT_AS, &lower), 0);
    // The process still has memory that was freed before.
    while (taken_.size() < taken_.capacity())
      if (void* piece = std::malloc(size_t{256} << 10); piece != nullptr)
        taken_.push_back(piece);
      else
        break;
  }
  ~NoMoreMemory() {
    for (void* piece : taken_) std::free(piece);
    ::setrlimit(RLIMIT_AS, &before_);
  }
  NoMoreMemory(const NoMoreMemory&) = delete;
  NoMoreMemory& operator=(const NoMoreMemory&) = delete;

 private:
  rlimit before_{};
  std::vector<void*> taken_;
};

TEST(CpuEngine, WithoutASecondSetWeightsAreAppliedInPlace) {
  auto engine = make_engine(make_folder(kLargerModel));
  TinyModel next = kLargerModel;
  next.seed = 2;
  auto fresh = make_engine(make_folder(next, "other"));
  const auto snapshot = testing::make_snapshot(next, PolicyVersion(1));
  {
    const NoMoreMemory refused;
    EXPECT_TRUE(engine->prepare(snapshot)) << "there is nothing to wait for";
  }
  EXPECT_EQ(engine->apply(*snapshot).value(), 2U + 3 * 11);
  for (auto* const each : {engine.get(), fresh.get()}) ASSERT_TRUE(each->submit(request(2)).ok());
  EXPECT_EQ(run(*engine).at(2).logprobs, run(*fresh).at(2).logprobs);
  EXPECT_FALSE(engine->prepare(testing::make_snapshot(kLargerModel, PolicyVersion(2))))
      << "now there is room";
}

TEST(CpuEngine, WeightsThatAreNotTheModelsAreNotPreparedAndRefused) {
  auto engine = make_engine(make_folder({}));
  const auto other = testing::make_snapshot({.num_layers = 3}, PolicyVersion(1));
  EXPECT_TRUE(engine->prepare(other));
  EXPECT_FALSE(engine->apply_prepared(other).ok());
  const auto right = testing::make_snapshot({}, PolicyVersion(1));
  EXPECT_EQ(engine->apply_prepared(right).value().value(), 2U + 2 * 11);
  EXPECT_EQ(engine->apply_prepared(right).value().value(), 0U) << "it has that version";
}

/// The weights of `model`, with one NaN tensor.
std::shared_ptr<const WeightSnapshot> broken_snapshot(const TinyModel& model, size_t tensor,
                                                      PolicyVersion version) {
  auto broken = *testing::make_snapshot(model, version);
  WeightTensor& one = broken.tensors.at(tensor);
  const std::vector<float> values(one.bytes.size() / sizeof(float), std::nanf(""));
  const auto bytes = std::as_bytes(std::span(values));
  one.bytes = Blob(std::vector<std::byte>(bytes.begin(), bytes.end()));
  return std::make_shared<const WeightSnapshot>(std::move(broken));
}

TEST(CpuEngine, NanWeightsFailSequencesAndTheEngineContinuesWithGoodOnes) {
  for (const char* const model_type : {"qwen3", "qwen3_moe", "glm4_moe"}) {
    const TinyModel model{.model_type = model_type};
    const size_t num_tensors = testing::make_snapshot(model, PolicyVersion(0))->tensors.size();
    auto fresh = make_engine(make_folder(model, "fresh"));
    for (size_t tensor = 0; tensor < num_tensors; tensor += 5) {
      auto engine = make_engine(make_folder(model), {.kv_blocks = 24, .block_size = 4});
      ASSERT_TRUE(engine->submit(request(1)).ok());
      ASSERT_TRUE(engine->step().ok());
      const auto broken = engine->apply(*broken_snapshot(model, tensor, PolicyVersion(3)));
      ASSERT_TRUE(broken.ok()) << broken.error().text();
      ASSERT_TRUE(engine->submit(request(2)).ok());
      const auto ends = run(*engine);
      ASSERT_EQ(ends.size(), 2U);
      for (const auto& [id, end] : ends) {
        EXPECT_EQ(end.reason, FinishReason::kFailed) << model_type << " " << tensor;
        EXPECT_THAT(end.detail, HasSubstr("under the weights of version 3"));
        // One sequence before the update; a NaN expert may not be used at once.
        if (model.model_type == "qwen3") {
          EXPECT_EQ(end.tokens.size(), id == 1 ? 1U : 0U);
        }
        EXPECT_EQ(end.logprobs.size(), end.tokens.size());
        for (const float logprob : end.logprobs) EXPECT_TRUE(std::isfinite(logprob));
      }
      EXPECT_EQ(engine->state().num_failed, 2U);
      EXPECT_EQ(engine->state().num_free_blocks, 24);
      ASSERT_TRUE(engine->apply(*testing::make_snapshot(model, PolicyVersion(4))).ok());
      for (const uint64_t id : {1U, 2U}) {
        ASSERT_TRUE(engine->submit(request(id)).ok());
        ASSERT_TRUE(fresh->submit(request(id)).ok());
        const auto after = run(*engine).at(id), expected = run(*fresh).at(id);
        EXPECT_EQ(after.reason, FinishReason::kLength);
        EXPECT_EQ(after.tokens, expected.tokens) << model_type << " " << tensor;
        EXPECT_EQ(after.logprobs, expected.logprobs);
      }
      EXPECT_EQ(engine->state().num_completed, 2U);
      EXPECT_EQ(engine->state().num_failed, 2U);
    }
  }
}

TEST(CpuEngine, AFailedStepEndsItsSequencesAndTheEngineContinues) {
  EngineOptions options;
  options.debug.check_finite = true;
  auto engine = make_engine(make_folder({}), options);
  ASSERT_TRUE(engine->apply(*broken_snapshot({}, 1, PolicyVersion(3))).ok());
  for (uint64_t id = 1; id <= 3; ++id) ASSERT_TRUE(engine->submit(request(id)).ok());
  const auto ends = run(*engine);
  ASSERT_EQ(ends.size(), 3U);
  for (const auto& [id, end] : ends) {
    EXPECT_EQ(end.reason, FinishReason::kFailed);
    EXPECT_THAT(end.detail, HasSubstr("activation 'layers.0."));
  }
  ASSERT_TRUE(engine->apply(*testing::make_snapshot({}, PolicyVersion(4))).ok());
  ASSERT_TRUE(engine->submit(request(1)).ok());
  EXPECT_EQ(run(*engine).at(1).reason, FinishReason::kLength);
}

TEST(CpuEngine, RefusesAnAdapterAndASecondTenantAndSaysWhy) {
  auto engine = make_engine(make_folder({}));
  const auto weights = testing::make_snapshot({.seed = 2}, PolicyVersion(3));
  const WeightsKey first{TenantSlot(4)}, second{TenantSlot(5)};
  const auto adapter = engine->apply(*with_key(*weights, {first.tenant, AdapterId(1)}));
  ASSERT_FALSE(adapter.ok());
  EXPECT_THAT(adapter.error().text(),
              HasSubstr("applies whole weights, not adapter 1 of tenant 4"));
  ASSERT_TRUE(engine->apply(*with_key(*weights, first)).ok()) << "the first may be any tenant";
  auto one = request(1);
  one.tenant = first.tenant;
  ASSERT_TRUE(engine->submit(one).ok());
  const auto before = run(*engine).at(1);
  const auto refused =
      engine->apply(*with_key(*testing::make_snapshot({}, PolicyVersion(3)), second));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().text(),
              ::testing::AllOf(HasSubstr("has the weights of tenant 4, not those of tenant 5"),
                               HasSubstr("whole weights of one tenant")));
  ASSERT_TRUE(engine->submit(one).ok());
  EXPECT_EQ(run(*engine).at(1).logprobs, before.logprobs);
}

TEST(CpuEngine, AnAppliedVersionKeepsTheCacheOfRunningSequences) {
  // New weights equal to the old ones: a sequence that spans both must not change.
  auto engine = make_engine(make_folder({}));
  ASSERT_TRUE(engine->apply(*testing::make_snapshot({}, PolicyVersion(0))).ok());
  ASSERT_TRUE(engine->submit(request(1)).ok());
  const auto expected = run(*engine).at(1).tokens;
  ASSERT_TRUE(engine->submit(request(1)).ok());
  ASSERT_TRUE(engine->step().ok());
  ASSERT_EQ(engine->take_prefilled().size(), 1U);
  ASSERT_TRUE(engine->take_over(SequenceId(1)).ok());
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(engine->step().ok());
  ASSERT_TRUE(engine->apply(*testing::make_snapshot({}, PolicyVersion(1))).ok());
  const auto end = run(*engine).at(1);
  EXPECT_EQ(end.tokens, expected);
  EXPECT_THAT(end.spans, ::testing::ElementsAre(VersionSpan{PolicyVersion(0), 0, 6},
                                                VersionSpan{PolicyVersion(1), 6, 20}));
}

TEST(CpuEngine, EndsAtTheModelsEndOfSequence) {
  const auto folder = make_folder({});
  auto engine = make_engine(folder);
  ASSERT_TRUE(engine->submit(request(1)).ok());
  const auto tokens = run(*engine).at(1).tokens;
  auto other = make_engine(make_folder({.eos_id = tokens[4]}, "eos"));
  auto one = request(1);
  one.sampling.ignore_eos = false;
  ASSERT_TRUE(other->submit(one).ok());
  const auto end = run(*other).at(1);
  EXPECT_EQ(end.reason, FinishReason::kStop);
  EXPECT_EQ(end.tokens.back(), tokens[4]);
}

TEST(CpuEngine, AStepWithoutWorkDoesNothing) {
  auto engine = make_engine(make_folder({}));
  EXPECT_FALSE(engine->has_work());
  EXPECT_TRUE(engine->step().ok());
  EXPECT_THAT(engine->describe(), HasSubstr("0 running"));
}

}  // namespace
}  // namespace primerl
