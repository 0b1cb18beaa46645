#include "kernels/models/padded_adapters.h"

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

const std::vector<AdapterConfig> kAdapters = {
    {.rank = 3, .targets = {"q_proj", "v_proj"}},
    {.rank = 12, .targets = {"down_proj", "v_proj"}},
    {.rank = 16, .targets = {"k_proj"}}};

TEST(PaddedAdapters, GiveBackWhatTheyWereGivenAndZeroElsewhere) {
  const TensorTable model(tiny());
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

TEST(PaddedAdapters, PutTheAsOfOneInputTogether) {
  const TensorTable model(tiny());
  const PaddedAdapters padded(model, kAdapters);
  const auto index_of = [&](std::string_view name) {
    return static_cast<size_t>(&model.at(name) - model.parameters().data());
  };
  const auto* qkv = padded.matrix(index_of("layers.1.attention.qkv"));
  ASSERT_NE(qkv, nullptr);
  ASSERT_EQ(qkv->parts.size(), 3U);
  EXPECT_EQ(qkv->parts[1].module, "model.layers.1.self_attn.k_proj");
  EXPECT_EQ(qkv->parts[1].column, 32);
  EXPECT_EQ(qkv->parts[2].column, 48);
  const std::string name = "base_model.model.model.layers.1.self_attn.k_proj.lora_A.weight";
  EXPECT_EQ(padded.tensors().at(name).offset, qkv->a + 16 * 24);
  EXPECT_EQ(padded.matrix(index_of("layers.0.attention.out")), nullptr) << "nobody's target";
  ASSERT_NE(padded.matrix(index_of("layers.0.mlp.down")), nullptr);
}

}  // namespace
}  // namespace primerl
