#include "kernels/models/tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace primerl {
namespace {

using ::testing::HasSubstr;

ModelConfig config() {
  ModelConfig made;
  made.vocab_size = 11;
  made.hidden_size = 6;
  made.is_tied = true;
  AttentionSpec attention;
  attention.num_heads = 2;
  attention.num_kv_heads = 1;
  attention.head_dim = 8;
  attention.has_qk_norm = true;
  for (int i = 0; i < 2; ++i) made.layers.push_back({{attention, MlpSpec{10, false}}});
  return made;
}

ModelConfig mixture() {
  ModelConfig made = config();
  MoeSpec moe;
  moe.num_experts = 3;
  moe.experts_per_token = 2;
  moe.width = 4;
  moe.shared_width = 5;
  moe.has_selection_bias = true;
  made.layers[1].stages[1] = moe;
  return made;
}

/// A buffer that contains its own indices, as tensors.
std::vector<WeightTensor> counting(const TensorTable& table) {
  std::vector<float> buffer(static_cast<size_t>(table.count()));
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<float>(i);
  return copy_parameters(table, buffer.data());
}

std::string fault(const TensorTable& table, const std::vector<WeightTensor>& tensors) {
  std::vector<float> buffer(static_cast<size_t>(table.count()), -1);
  const Status filled = fill_parameters(table, tensors, buffer.data());
  if (filled.ok()) return "";
  for (const float value : buffer) EXPECT_EQ(value, -1) << "half filled";
  return filled.error().text();
}

int64_t offset(const TensorTable& table, const std::string& name) {
  for (const auto& slice : table.slices())
    if (slice.name == name) return slice.offset;
  return -1;
}

TEST(TensorTable, PutsMatricesOfOneGemmSideBySide) {
  const TensorTable table(config());
  const std::string attention = "model.layers.1.self_attn.", mlp = "model.layers.1.mlp.";
  const int64_t qkv = table.at("layers.1.attention.qkv").offset;
  EXPECT_EQ(offset(table, attention + "q_proj.weight"), qkv);
  EXPECT_EQ(offset(table, attention + "k_proj.weight"), qkv + 16 * 6);
  EXPECT_EQ(offset(table, attention + "v_proj.weight"), qkv + 24 * 6);
  EXPECT_EQ(offset(table, mlp + "up_proj.weight"),
            table.at("layers.1.mlp.gate_up").offset + 10 * 6);
  EXPECT_EQ(offset(table, "lm_head.weight"), -1);
  EXPECT_TRUE(table.is_tied());
  EXPECT_EQ(table.find("layers.1.attention.qkv_bias"), nullptr);
  for (const auto& parameter : table.parameters()) EXPECT_EQ(parameter.offset % 32, 0);
}

TEST(TensorTable, AModelThatIsNotTiedHasAHead) {
  auto untied = config();
  untied.is_tied = false;
  for (auto& layer : untied.layers) {
    auto& attention = std::get<AttentionSpec>(layer.stages[0]);
    attention.has_qkv_bias = attention.has_out_bias = true;
    std::get<MlpSpec>(layer.stages[1]).has_bias = true;
  }
  const TensorTable table(untied);
  EXPECT_FALSE(table.is_tied());
  EXPECT_EQ(table.slices().front().name, "lm_head.weight");
  EXPECT_EQ(table.slices().size(), 3U + 2 * (11 + 4 + 3));
}

TEST(TensorTable, ExpertsOfALayerAreOneParameterAndManyTensors) {
  const TensorTable table(mixture());
  const Parameter& gate_up = table.at("layers.1.moe.experts_gate_up");
  EXPECT_EQ(gate_up.shape, (std::vector<int64_t>{3, 8, 6}));
  const std::string experts = "model.layers.1.mlp.experts.";
  EXPECT_EQ(offset(table, experts + "2.gate_proj.weight"), gate_up.offset + 2 * 48);
  EXPECT_EQ(offset(table, experts + "2.up_proj.weight"), gate_up.offset + 2 * 48 + 24);
  EXPECT_EQ(offset(table, experts + "1.down_proj.weight"),
            table.at("layers.1.moe.experts_down").offset + 24);
  EXPECT_NE(offset(table, "model.layers.1.mlp.shared_experts.down_proj.weight"), -1);
  // Untrained parameters come after all trained ones.
  const Parameter& bias = table.at("layers.1.moe.selection_bias");
  EXPECT_FALSE(bias.is_trained);
  EXPECT_EQ(bias.offset, table.trained_count());
}

TEST(TensorTable, CopiedTensorsFillTheBufferAgain) {
  for (const auto& model : {config(), mixture()}) {
    const TensorTable table(model);
    const auto tensors = counting(table);
    std::vector<float> buffer(static_cast<size_t>(table.count()), -1);
    ASSERT_TRUE(fill_parameters(table, tensors, buffer.data()).ok());
    for (const auto& slice : table.slices())
      for (int64_t i = slice.offset; i < slice.offset + slice.count; ++i)
        EXPECT_EQ(buffer[static_cast<size_t>(i)], static_cast<float>(i));
  }
}

TEST(TensorTable, UntrainedTensorsAreReadSeparately) {
  const TensorTable table(mixture());
  const auto tensors = counting(table);
  std::vector<float> biases(static_cast<size_t>(table.count() - table.trained_count()), -1);
  ASSERT_TRUE(fill_untrained(table, tensors, biases.data()).ok());
  const Parameter& bias = table.at("layers.1.moe.selection_bias");
  for (int64_t i = 0; i < bias.count; ++i)
    EXPECT_EQ(biases[static_cast<size_t>(bias.offset - table.trained_count() + i)],
              static_cast<float>(bias.offset + i));
  auto without = tensors;
  std::erase_if(without, [](const auto& one) { return one.name.ends_with("correction_bias"); });
  const Status missing = fill_untrained(table, without, biases.data());
  ASSERT_FALSE(missing.ok());
  EXPECT_THAT(missing.error().text(), HasSubstr("e_score_correction_bias' is missing"));
}

TEST(TensorTable, ReadsExpertsThatAreFused) {
  const TensorTable table(mixture());
  const auto apart = counting(table);
  const std::string name = "model.layers.1.mlp.experts.down_proj";
  const Parameter& down = table.at("layers.1.moe.experts_down");
  std::vector<float> values;
  for (int64_t i = 0; i < down.count; ++i) values.push_back(static_cast<float>(down.offset + i));
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  const WeightTensor fused{name, DataType::kF32, down.shape, Blob(std::move(bytes))};
  auto tensors = apart;
  std::erase_if(tensors, [](const auto& one) {
    return one.name.find("experts.") != std::string::npos &&
           one.name.find("shared") == std::string::npos && one.name.ends_with("down_proj.weight");
  });
  tensors.push_back(fused);
  std::vector<float> buffer(static_cast<size_t>(table.count()), -1);
  const Status filled = fill_parameters(table, tensors, buffer.data());
  ASSERT_TRUE(filled.ok()) << filled.error().text();
  for (int64_t i = 0; i < down.count; ++i)
    EXPECT_EQ(buffer[static_cast<size_t>(down.offset + i)], static_cast<float>(down.offset + i));
  auto both = apart;
  both.push_back(fused);
  EXPECT_THAT(fault(table, both), HasSubstr("is there twice, alone and fused"));
}

TEST(TensorTable, NamesMissingUnknownAndMisshapenTensors) {
  const TensorTable table(config());
  const auto good = counting(table);
  EXPECT_EQ(fault(table, good), "");
  auto missing = good;
  missing.erase(missing.begin() + 3);
  missing.pop_back();
  EXPECT_THAT(fault(table, missing), HasSubstr("'" + good[3].name + "'"));
  EXPECT_THAT(fault(table, missing), HasSubstr("'model.norm.weight' of shape [6] is missing"));
  auto unknown = good;
  unknown.push_back(good.back());
  unknown.back().name = "zebra";
  EXPECT_THAT(fault(table, unknown), HasSubstr("'zebra' of shape [6] is not part"));
  auto misshapen = good;
  misshapen.front().shape = {6, 11};
  EXPECT_THAT(fault(table, misshapen), HasSubstr("[6, 11], the model needs [11, 6]"));
  auto wrong = good;
  wrong.back().type = DataType::kI32;
  EXPECT_THAT(fault(table, wrong), HasSubstr("I32"));
}

TEST(TensorTable, NamesAtMostTwentyTensorsInOneError) {
  const TensorTable table(config());
  const auto lines = [&](size_t left) {
    auto some = counting(table);
    some.erase(some.begin(), some.end() - static_cast<std::ptrdiff_t>(left));
    const std::string text = fault(table, some);
    return std::pair(std::count(text.begin(), text.end(), '\n'), text);
  };
  const size_t all = table.slices().size();
  EXPECT_EQ(lines(all - 20).first, 19);
  EXPECT_EQ(lines(all - 21).first, 20);
  EXPECT_THAT(lines(all - 21).second, HasSubstr("and 1 more"));
}

TEST(TensorTable, LayersForMultiTokenPredictionAreKeptApart) {
  auto with_more = config();
  with_more.num_unused_layers = 2;
  const TensorTable table(with_more);
  auto tensors = counting(table);
  for (const char* name : {"model.layers.2.eh_proj.weight", "model.layers.3.enorm.weight"}) {
    tensors.push_back(tensors.back());
    tensors.back().name = name;
  }
  const auto match = match_tensors(table, tensors);
  ASSERT_TRUE(match.ok()) << match.error().text();
  EXPECT_EQ(match->unused.size(), 2U);
  for (const char* name : {"model.layers.4.enorm.weight", "model.layers.2x.enorm.weight"}) {
    tensors.back().name = name;
    EXPECT_THAT(fault(table, tensors), HasSubstr("not part of the model"));
  }
}

TEST(TensorTable, ATiedModelMayCarryItsHeadTwice) {
  const TensorTable table(config());
  auto tensors = counting(table);
  tensors.insert(tensors.begin(), tensors.front());
  tensors.front().name = "lm_head.weight";
  EXPECT_EQ(fault(table, tensors), "");
}

std::vector<WeightTensor>::iterator named(std::vector<WeightTensor>& tensors,
                                          const std::string& name) {
  return std::ranges::find(tensors, name, &WeightTensor::name);
}

void sort_by_name(std::vector<WeightTensor>& tensors) {
  std::ranges::sort(tensors, {}, &WeightTensor::name);
}

TEST(TensorTable, ATiedModelMayBeSavedUnderTheNameOfItsHead) {
  const TensorTable table(config());
  auto tensors = counting(table);
  const auto embedding = named(tensors, "model.embed_tokens.weight");
  const float first = static_cast<float>(offset(table, "model.embed_tokens.weight"));
  embedding->name = "lm_head.weight";
  sort_by_name(tensors);
  std::vector<float> buffer(static_cast<size_t>(table.count()), -1);
  const Status filled = fill_parameters(table, tensors, buffer.data());
  ASSERT_TRUE(filled.ok()) << filled.error().text();
  EXPECT_EQ(buffer[static_cast<size_t>(first)], first);
  named(tensors, "lm_head.weight")->shape = {6, 11};
  EXPECT_THAT(fault(table, tensors), HasSubstr("has shape [6, 11], the model needs [11, 6]"));
  auto untied = config();
  untied.is_tied = false;
  EXPECT_THAT(fault(TensorTable(untied), tensors),
              HasSubstr("'model.embed_tokens.weight' of shape [11, 6] is missing"));
}

TEST(TensorTable, AnglesOfOlderProgramsAreNotRead) {
  const TensorTable table(config());
  auto tensors = counting(table);
  for (const char* name : {"model.layers.0.self_attn.rotary_emb.inv_freq",
                           "model.layers.1.self_attn.rotary_emb.cos_cached"}) {
    tensors.push_back(tensors.front());
    tensors.back().name = name;
  }
  sort_by_name(tensors);
  EXPECT_EQ(fault(table, tensors), "");
  const auto match = match_tensors(table, tensors).value();
  ASSERT_EQ(match.buffers.size(), 2U);
  EXPECT_EQ(match.unused.size(), 0U);
  tensors.back() = tensors.front();
  tensors.back().name = "model.rotary.freq";
  sort_by_name(tensors);
  EXPECT_THAT(fault(table, tensors), HasSubstr("'model.rotary.freq'"));
}

TEST(TensorTable, ReadsHalfAndBfloatExactly) {
  const TensorTable table(config());
  auto tensors = counting(table);
  // 1, -2, 65504, the smallest subnormal, infinity, 0
  const std::vector<uint16_t> half = {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x7C00, 0x8000};
  const std::vector<uint16_t> bfloat = {0x3F80, 0xC000, 0x7F7F, 0x0001, 0x7F80, 0x8000};
  for (const bool is_half : {true, false}) {
    std::vector<std::byte> bytes(12);
    std::memcpy(bytes.data(), (is_half ? half : bfloat).data(), 12);
    tensors.back().type = is_half ? DataType::kF16 : DataType::kBF16;
    tensors.back().bytes = Blob(std::move(bytes));
    std::vector<float> buffer(static_cast<size_t>(table.count()));
    ASSERT_TRUE(fill_parameters(table, tensors, buffer.data()).ok());
    const float* read = buffer.data() + table.at("final_norm").offset;
    EXPECT_EQ(read[0], 1);
    EXPECT_EQ(read[1], -2);
    EXPECT_EQ(read[2], is_half ? 65504.0F : 3.3895313892515355e38F);
    EXPECT_EQ(read[3], is_half ? 5.9604644775390625e-8F : 9.183549615799121e-41F);
    EXPECT_TRUE(std::isinf(read[4]));
    EXPECT_TRUE(std::signbit(read[5]));
  }
}

}  // namespace
}  // namespace primerl
