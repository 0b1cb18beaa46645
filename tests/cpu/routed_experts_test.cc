// The experts that an engine reports are those that the learner chooses for the same tokens: of
// prompts, completions, the prefix cache and preempted sequences.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/cpu/learner/learner.h"
#include "kernels/models/folder.h"
#include "kernels/weights/safetensors.h"
#include "tests/cpu/tiny_model.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;
using testing::TinyModel;

using Rows = std::vector<std::vector<int32_t>>;  // of each position: layer after layer

struct RoutedExpertsTest : ::testing::TestWithParam<int32_t> {
  std::unique_ptr<Engine> make(EngineOptions options = {}) {
    options.routed_experts = true;
    auto engine = make_torch_engine(options, folder());
    CHECK(engine.ok(), engine.error().text());
    return std::move(engine).value();
  }
  const std::filesystem::path& folder() {
    if (folder_.empty())
      folder_ = testing::make_folder({.model_type = "qwen3_moe", .num_experts = GetParam()});
    return folder_;
  }
  static SequenceRequest request(uint64_t id, int32_t num_prompt_tokens, int32_t max_tokens) {
    SequenceRequest made;
    made.id = SequenceId(id);
    for (int32_t i = 0; i < num_prompt_tokens; ++i)
      made.prompt_tokens.push_back(2 + (i * i + 7 * i) % 57);
    made.sampling.max_tokens = max_tokens;
    made.sampling.ignore_eos = true;
    made.sampling.routed_experts_start = 0;
    made.seed = id;
    made.salt = "s";
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
  static Rows rows_of(const RoutedExperts& routed) {
    Rows rows;
    const auto bytes = routed.bytes.bytes();
    for (size_t i = 0; i < bytes.size();) {
      if (i % routed.row_bytes() == 0) rows.emplace_back();
      auto id = static_cast<int32_t>(bytes[i++]);
      if (routed.is_wide) id += static_cast<int32_t>(bytes[i++]) << 8;
      rows.back().push_back(id);
    }
    return rows;
  }
  /// The learner's choices for every token but the last.
  Rows expected(std::vector<int32_t> tokens, const std::vector<int32_t>& more) {
    tokens.insert(tokens.end(), more.begin(), more.end());
    CpuLearner learner({}, read_model_folder(folder()).value());
    CHECK(learner.fill(read_model_tensors(folder()).value()).ok(), "no weights");
    std::map<std::string, std::vector<std::vector<int32_t>>> chosen;
    learner.visit([&](const std::string& name, const at::Tensor& rows) {
      if (!name.ends_with(".moe.experts")) return;
      for (int64_t row = 0; row < rows.size(0); ++row) {
        const int32_t* ids = rows.const_data_ptr<int32_t>() + row * rows.size(1);
        chosen[name].emplace_back(ids, ids + rows.size(1));
      }
    });
    CHECK(learner.score(TenantSlot(0), tokens).ok(), "not scored");
    Rows rows(tokens.size() - 1);
    for (const auto& [name, layer] : chosen)
      for (size_t i = 0; i < rows.size(); ++i)
        rows[i].insert(rows[i].end(), layer.at(i).begin(), layer.at(i).end());
    return rows;
  }
  std::filesystem::path folder_;
};

TEST_P(RoutedExpertsTest, AreThoseOfTheLearnerForAPromptAndItsCompletion) {
  auto engine = make({.block_size = 4, .max_prefill_tokens = 5});
  const auto one = request(1, 11, 9);
  ASSERT_TRUE(engine->submit(one).ok());
  const auto end = run(*engine).at(1);
  EXPECT_EQ(end.routed.num_rows(), 11U + 9 - 1);
  EXPECT_EQ(end.routed.is_wide, GetParam() > 256);
  EXPECT_EQ(rows_of(end.routed), expected(one.prompt_tokens, end.tokens));
}

TEST_P(RoutedExpertsTest, AreTheSameFromThePrefixCacheAndAfterAPreemption) {
  auto engine = make({.kv_blocks = 16, .block_size = 4, .max_sequence_tokens = 48});
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(engine->submit(request(id, 13, 20)).ok());
  auto ends = run(*engine);
  EXPECT_GT(engine->state().num_preemptions, 0U) << "the blocks are too few for all";
  ASSERT_TRUE(engine->submit(request(5, 13, 6)).ok());
  ends[5] = run(*engine).at(5);
  EXPECT_GT(ends[5].num_cached_tokens, 0);
  for (const auto& [id, end] : ends)
    EXPECT_EQ(rows_of(end.routed), expected(request(id, 13, 1).prompt_tokens, end.tokens)) << id;
}

TEST_P(RoutedExpertsTest, BeginAtTheStartThatTheRequestNames) {
  auto engine = make();
  auto one = request(1, 6, 3);
  ASSERT_TRUE(engine->submit(one).ok());
  const Rows all = rows_of(run(*engine).at(1).routed);
  ASSERT_EQ(all.size(), 8U);
  for (const int32_t start : {5, 7, 8, 100}) {
    one.id = SequenceId(static_cast<uint64_t>(start) + 1);
    one.sampling.routed_experts_start = start;
    ASSERT_TRUE(engine->submit(one).ok());
    const auto routed = run(*engine).at(one.id.value).routed;
    const auto skipped = std::min<size_t>(static_cast<size_t>(start), all.size());
    EXPECT_EQ(rows_of(routed), Rows(all.begin() + static_cast<std::ptrdiff_t>(skipped), all.end()));
    EXPECT_EQ(routed.start, start);
  }
  one.id = SequenceId(200);
  one.sampling.routed_experts_start = -1;
  ASSERT_TRUE(engine->submit(one).ok());
  EXPECT_TRUE(run(*engine).at(200).routed.bytes.empty()) << "nothing asked for them";
  one.id = SequenceId(201);
  one.sampling.routed_experts_start = -2;
  EXPECT_FALSE(engine->submit(one).ok());
}

INSTANTIATE_TEST_SUITE_P(Experts, RoutedExpertsTest, ::testing::Values(8, 300));

TEST(RoutedExperts, ADenseModelIsRefusedAndAnEngineWithoutTheOptionReportsNone) {
  const auto dense = make_torch_engine({.routed_experts = true}, testing::make_folder({}, "dense"));
  ASSERT_FALSE(dense.ok());
  EXPECT_THAT(dense.error().text(), HasSubstr("the model 'qwen3' has no experts"));
  auto engine =
      make_torch_engine({}, testing::make_folder({.model_type = "qwen3_moe"}, "mixture")).value();
  SequenceRequest one;
  one.id = SequenceId(1);
  one.prompt_tokens = {2, 3};
  one.sampling.max_tokens = 1;
  one.sampling.routed_experts_start = 0;
  ASSERT_TRUE(engine->submit(one).ok());
  while (engine->has_work()) {
    ASSERT_TRUE(engine->step().ok());
    for (const auto& event : engine->take_prefilled())
      ASSERT_TRUE(engine->take_over(event.id).ok());
    for (const auto& end : engine->take_finished()) {
      EXPECT_TRUE(end.routed.bytes.empty());
    }
  }
}

}  // namespace
}  // namespace primerl
