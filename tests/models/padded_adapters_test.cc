#include "kernels/models/padded_adapters.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

ModelConfig tiny() {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json")
      << R"({"model_type":"qwen3","vocab_size":61,"hidden_size":24,"intermediate_size":40,)"
         R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,)"
         R"("max_position_embeddings":64,"tie_word_embeddings":true,"eos_token_id":1})";
  return read_model_config(folder).value();
}

/// A dense layer, and one of four experts and a shared one.
ModelConfig tiny_mixture() {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json")
      << R"({"model_type":"glm4_moe","vocab_size":61,"hidden_size":24,"intermediate_size":40,)"
         R"("num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":8,)"
         R"("moe_intermediate_size":16,"n_routed_experts":4,"num_experts_per_tok":2,)"
         R"("n_shared_experts":1,"first_k_dense_replace":1,)"
         R"("max_position_embeddings":64,"tie_word_embeddings":false,"eos_token_id":1})";
  return read_model_config(folder).value();
}

const std::vector<AdapterConfig> kAdapters = {{.rank = 3, .targets = {"q_proj", "v_proj"}},
                                              {.rank = 12, .targets = {"down_proj", "v_proj"}},
                                              {.rank = 16, .targets = {"k_proj"}}};

void expect_given_back(const TensorTable& model) {
  const PaddedAdapters padded(model, kAdapters);
  EXPECT_EQ(padded.rank(), 16);
  const auto count = static_cast<size_t>(padded.tensors().count());
  for (const auto& config : kAdapters) {
    const AdapterTable table(model, config);
    std::vector<float> numbers(static_cast<size_t>(table.tensors().count()), 0.0F);
    size_t num_set = 0;
    for (const auto& parameter : table.tensors().parameters())
      for (int64_t i = 0; i < parameter.count; ++i)
        numbers[static_cast<size_t>(parameter.offset + i)] = static_cast<float>(++num_set);
    std::vector<float> wide(count, 7.0F), back(numbers.size(), 7.0F);
    padded.pad(table, numbers.data(), wide.data());
    const auto num_wide = std::ranges::count_if(wide, [](float value) { return value != 0; });
    EXPECT_EQ(static_cast<size_t>(num_wide), num_set);
    padded.cut(table, wide.data(), back.data());
    EXPECT_EQ(back, numbers);
  }
}

TEST(PaddedAdapters, GiveBackWhatTheyWereGivenAndZeroElsewhere) {
  expect_given_back(TensorTable(tiny()));
  expect_given_back(TensorTable(tiny_mixture()));
}

TEST(PaddedAdapters, PutTheAsOfOneInputTogether) {
  const TensorTable model(tiny());
  const PaddedAdapters padded(model, kAdapters);
  const auto index_of = [&](std::string_view name) {
    return static_cast<size_t>(&model.at(name) - model.parameters().data());
  };
  const auto* qkv = padded.matrix(index_of("layers.1.attention.qkv"));
  ASSERT_NE(qkv, nullptr);
  ASSERT_EQ(qkv->parts.size(), 3U);
  EXPECT_EQ(qkv->parts[1].modules.front(), "model.layers.1.self_attn.k_proj");
  EXPECT_EQ(qkv->parts[1].column, 32);
  EXPECT_EQ(qkv->parts[2].column, 48);
  const std::string name = "base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight";
  EXPECT_EQ(padded.tensors().at(name).offset, qkv->a + 16 * 24);
  EXPECT_EQ(padded.matrix(index_of("layers.0.attention.out")), nullptr) << "not targeted";
  ASSERT_NE(padded.matrix(index_of("layers.0.mlp.down")), nullptr);
}

TEST(PaddedAdapters, PutExpertsAtEqualDistances) {
  const TensorTable model(tiny_mixture());
  const std::vector<AdapterConfig> adapters = {{.rank = 4, .targets = {"gate_proj", "up_proj"}},
                                               {.rank = 17, .targets = {"up_proj"}}};
  const PaddedAdapters padded(model, adapters);
  const auto matrix_of = [&](std::string_view name) {
    return padded.matrix(static_cast<size_t>(&model.at(name) - model.parameters().data()));
  };
  const auto offset_of = [&](int expert, std::string_view tensor) {
    return padded.tensors()
        .at(fmt::format("base_model.model.model.layers.1.mlp.experts.{}.{}.weight", expert, tensor))
        .offset;
  };
  const auto* gate_up = matrix_of("layers.1.moe.experts_gate_up");
  ASSERT_NE(gate_up, nullptr);
  ASSERT_EQ(gate_up->parts.size(), 2U);
  EXPECT_EQ(gate_up->groups, 4);
  EXPECT_EQ(gate_up->parts[1].modules[3], "model.layers.1.mlp.experts.3.up_proj");
  for (int expert = 0; expert < 4; ++expert) {
    const int64_t a = gate_up->a + expert * gate_up->a_stride;
    EXPECT_EQ(offset_of(expert, "gate_proj.lora_A"), a);
    EXPECT_EQ(offset_of(expert, "up_proj.lora_A"), a + 32 * 24);
    EXPECT_EQ(offset_of(expert, "gate_proj.lora_B"), gate_up->parts[0].b + expert * 16 * 32);
    EXPECT_EQ(offset_of(expert, "up_proj.lora_B"), gate_up->parts[1].b + expert * 16 * 32);
  }
  EXPECT_EQ(matrix_of("layers.1.moe.experts_down"), nullptr) << "not targeted";
  ASSERT_NE(matrix_of("layers.1.moe.shared_gate_up"), nullptr);
  EXPECT_EQ(matrix_of("layers.1.moe.shared_gate_up")->groups, 1);
}

}  // namespace
}  // namespace primerl
