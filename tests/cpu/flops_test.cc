// The operations of a training step, counted by hand.
#include "kernels/common/flops.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

ModelConfig config_of(const std::string& more) {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json")
      << R"({"vocab_size": 10, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
             "num_key_value_heads": 1, "head_dim": 4, "max_position_embeddings": 32,
             "rms_norm_eps": 1e-6, "tie_word_embeddings": true, "hidden_act": "silu",
             "rope_theta": 10000.0, )"
      << more << "}";
  return read_model_config(folder).value();
}

ModelConfig dense() { return config_of(R"("model_type": "llama", "intermediate_size": 12)"); }

/// A sample of `num_tokens`, the first of them given; its last token has no row.
MicroBatch one_sample(size_t num_tokens) {
  TrainSample sample;
  sample.tokens.assign(num_tokens, 1);
  sample.loss_mask.assign(num_tokens, 1);
  sample.loss_mask[0] = 0;
  sample.logprobs.assign(num_tokens, -1);
  sample.advantages.assign(num_tokens, 1);
  return pack(std::vector{sample}, 64).front();
}

TEST(Flops, MatricesOfADenseLayer) {
  // q [8, 8], k and v [4, 8] each, out [8, 8]; gate and up [12, 8] each, down [8, 12].
  EXPECT_EQ(active_matrix_parameters(dense()), 2 * (64 + 32 + 32 + 64 + 3 * 96));
}

TEST(Flops, OfAMixtureOnlyTheExpertsOfATokenCount) {
  const ModelConfig config = config_of(
      R"("model_type": "qwen3_moe", "intermediate_size": 12, "moe_intermediate_size": 4,
         "num_experts": 16, "num_experts_per_tok": 3, "norm_topk_prob": true,
         "decoder_sparse_step": 1, "mlp_only_layers": [])");
  EXPECT_EQ(active_matrix_parameters(config), 2 * (192 + 3 * 3 * 8 * 4 + 8 * 16));
}

TEST(Flops, AStepTakesSixForEachParameterAndRowAndTwelveForEachKey) {
  const MicroBatch batch = one_sample(5);
  ASSERT_EQ(batch.rows.num_rows(), 4);
  ASSERT_EQ(batch.targets.size(), 4U);
  const double body = 960, head = 80;
  const double keys = 1 + 2 + 3 + 4, of_key = 12.0 * 2 * 4 * 2;
  EXPECT_EQ(training_flops(dense(), std::vector{batch}, false),
            6 * 4 * (body + head) + of_key * keys);
  EXPECT_EQ(training_flops(dense(), std::vector{batch}, true),
            4 * 4 * (body + head) + of_key * keys);
  EXPECT_EQ(training_flops(dense(), std::vector{batch, batch}, false),
            2 * training_flops(dense(), std::vector{batch}, false));
}

TEST(Flops, APromptThatSamplesShareIsComputedOnce) {
  TrainSample sample;
  sample.tokens = {1, 2, 3, 4, 5, 6};
  sample.loss_mask = {0, 0, 0, 0, 1, 1};
  sample.logprobs.assign(6, -1);
  sample.advantages.assign(6, 1);
  const auto batch = pack(std::vector{sample, sample}, 64);
  ASSERT_EQ(batch.size(), 1U);
  ASSERT_EQ(batch[0].rows.num_rows(), 4 + 2 * 1);
  const double keys = (1 + 2 + 3 + 4) + 2 * 5;
  EXPECT_EQ(training_flops(dense(), batch, false),
            6 * (960 * 6 + 80 * 4) + 12.0 * 2 * 4 * 2 * keys);
}

TEST(Flops, PeaksAreKnownByTheNameOfTheDriver) {
  EXPECT_EQ(known_peak_flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(known_peak_flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(known_peak_flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(known_peak_flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(known_peak_flops("NVIDIA L40S"), 362e12);
  EXPECT_EQ(known_peak_flops("NVIDIA L4"), 121e12);
  EXPECT_EQ(known_peak_flops("Some Other"), 0);
}

}  // namespace
}  // namespace primerl
