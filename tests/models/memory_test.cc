// What engines and learners keep in memory, counted by hand.
#include "kernels/models/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

ModelConfig small_model() {
  constexpr const char* kText = R"({"model_type": "llama", "vocab_size": 10, "hidden_size": 8,
    "intermediate_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "hidden_act": "silu",
    "rope_theta": 10000.0})";
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json") << kText;
  return read_model_config(folder).value();
}

double floats_of(const TensorTable& table) { return 4.0 * static_cast<double>(table.count()); }

TEST(Memory, OfALearnerIsItsWeightsGradientsAndMoments) {
  const TensorTable table(small_model());
  EXPECT_EQ(sum_of(learner_memory(small_model())), 4 * floats_of(table));
}

TEST(Memory, OfALearnerOfAdaptersIsTheBaseOnceAndFourTimesEachAdapter) {
  const TensorTable table(small_model());
  const AdapterConfig one = {.rank = 2}, other = {.rank = 3, .targets = {"q_proj"}};
  const auto parts = learner_memory(small_model(), {{"a", one}, {"b", other}});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].bytes, floats_of(table));
  EXPECT_EQ(parts[1].bytes, 4 * floats_of(AdapterTable(table, one).tensors()));
  EXPECT_EQ(parts[2].bytes, 4 * floats_of(AdapterTable(table, other).tensors()));
  EXPECT_THAT(parts[1].what, HasSubstr("'a' (rank 2)"));
}

TEST(Memory, OfAnEngineIsItsWeightsSlotsAndBlocks) {
  const TensorTable table(small_model());
  EngineOptions options;
  options.kv_blocks = 7;
  options.block_size = 4;
  const double blocks = 2.0 * 4 * 2 * 7 * 4 * 1 * 4;  // K and V, fp32, layers, rows, heads, head
  EXPECT_EQ(sum_of(engine_memory(options, small_model())), floats_of(table) + blocks);
  options.adapter_slots = options.adapters_max = 3;
  options.max_adapter_rank = 5;
  const double adapter = floats_of(AdapterTable(table, {.rank = 5}).tensors());
  EXPECT_EQ(sum_of(engine_memory(options, small_model())), floats_of(table) + blocks + 3 * adapter);
  options.adapters_max = 10;
  EXPECT_EQ(sum_of(engine_memory(options, small_model())),
            floats_of(table) + blocks + (3 + 10) * adapter)
      << "all are kept beside the slots";
}

TEST(Memory, IsSaidInUnitsThatPeopleRead) {
  EXPECT_EQ(memory_text(1023), "1023 B");
  EXPECT_EQ(memory_text(1024), "1 KiB");
  EXPECT_EQ(memory_text(1536), "1.5 KiB");
  EXPECT_EQ(memory_text(3.0 * (1 << 30)), "3 GiB");
}

}  // namespace
}  // namespace primerl
