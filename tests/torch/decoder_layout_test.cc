#include "kernels/torch/models/decoder_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace primerl {
namespace {

using ::testing::HasSubstr;

ModelConfig config() {
  ModelConfig made;
  made.vocab_size = 11;
  made.hidden_size = 6;
  made.intermediate_size = 10;
  made.num_layers = 2;
  made.num_heads = 2;
  made.num_kv_heads = 1;
  made.head_dim = 8;
  made.tied_embeddings = true;
  made.qk_norm = true;
  return made;
}

/// A buffer that holds its own indices, as tensors.
std::vector<WeightTensor> counting(const DecoderLayout& layout) {
  std::vector<float> buffer(static_cast<size_t>(layout.count));
  for (size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<float>(i);
  return copy_parameters(layout, buffer.data());
}

std::string fault(const DecoderLayout& layout, const std::vector<WeightTensor>& tensors) {
  std::vector<float> buffer(static_cast<size_t>(layout.count), -1);
  const Status filled = fill_parameters(layout, tensors, buffer.data());
  if (filled.ok()) return "";
  for (const float value : buffer) EXPECT_EQ(value, -1) << "half filled";
  return filled.error().text();
}

TEST(DecoderLayout, PutsMatricesOfOneProductSideBySide) {
  const DecoderLayout layout(config());
  const auto offset = [&](const std::string& name) {
    for (const auto& slice : layout.slices)
      if (slice.name == name) return slice.offset;
    return int64_t{-1};
  };
  const std::string attention = "model.layers.1.self_attn.", mlp = "model.layers.1.mlp.";
  EXPECT_EQ(offset(attention + "q_proj.weight"), layout.layers[1].qkv);
  EXPECT_EQ(offset(attention + "k_proj.weight"), layout.layers[1].qkv + 16 * 6);
  EXPECT_EQ(offset(attention + "v_proj.weight"), layout.layers[1].qkv + 24 * 6);
  EXPECT_EQ(offset(mlp + "up_proj.weight"), layout.layers[1].gate_up + 10 * 6);
  EXPECT_EQ(offset("lm_head.weight"), -1);
  EXPECT_EQ(layout.head, layout.embedding);
  for (const auto& layer : layout.layers) {
    EXPECT_EQ(layer.qkv % 16, 0);
    EXPECT_EQ(layer.down % 16, 0);
    EXPECT_EQ(layer.qkv_bias, kNoParameter);
  }
}

TEST(DecoderLayout, AModelThatIsNotTiedHasAHead) {
  auto untied = config();
  untied.tied_embeddings = false;
  untied.attention_bias = true;
  untied.mlp_bias = true;
  const DecoderLayout layout(untied);
  EXPECT_NE(layout.head, layout.embedding);
  EXPECT_EQ(layout.slices.front().name, "lm_head.weight");
  EXPECT_EQ(layout.slices.size(), 3U + 2 * (11 + 4 + 3));
}

TEST(DecoderLayout, WhatIsCopiedOutFillsInAgain) {
  const DecoderLayout layout(config());
  const auto tensors = counting(layout);
  std::vector<float> buffer(static_cast<size_t>(layout.count), -1);
  ASSERT_TRUE(fill_parameters(layout, tensors, buffer.data()).ok());
  for (const auto& slice : layout.slices)
    for (int64_t i = slice.offset; i < slice.offset + slice.count; ++i)
      EXPECT_EQ(buffer[static_cast<size_t>(i)], static_cast<float>(i));
}

TEST(DecoderLayout, NamesMissingUnknownAndMisshapenTensors) {
  const DecoderLayout layout(config());
  const auto good = counting(layout);
  EXPECT_EQ(fault(layout, good), "");
  auto missing = good;
  missing.erase(missing.begin() + 3);
  EXPECT_THAT(fault(layout, missing), HasSubstr("'" + good[3].name + "'"));
  missing = good;
  missing.pop_back();
  EXPECT_THAT(fault(layout, missing), HasSubstr("'model.norm.weight' of shape [6] is missing"));
  auto unknown = good;
  unknown.push_back(good.back());
  unknown.back().name = "zebra";
  EXPECT_THAT(fault(layout, unknown), HasSubstr("'zebra' of shape [6] is not part"));
  auto misshapen = good;
  misshapen.front().shape = {6, 11};
  EXPECT_THAT(fault(layout, misshapen), HasSubstr("[6, 11], the model needs [11, 6]"));
  auto wrong = good;
  wrong.back().type = DataType::kI32;
  EXPECT_THAT(fault(layout, wrong), HasSubstr("I32"));
}

TEST(DecoderLayout, ATiedModelMayCarryItsHeadTwice) {
  const DecoderLayout layout(config());
  auto tensors = counting(layout);
  tensors.insert(tensors.begin(), tensors.front());
  tensors.front().name = "lm_head.weight";
  EXPECT_EQ(fault(layout, tensors), "");
}

TEST(DecoderLayout, ReadsHalfAndBfloatExactly) {
  const DecoderLayout layout(config());
  auto tensors = counting(layout);
  // 1, -2, 65504, the smallest subnormal, infinity, 0
  const std::vector<uint16_t> half = {0x3C00, 0xC000, 0x7BFF, 0x0001, 0x7C00, 0x8000};
  const std::vector<uint16_t> bfloat = {0x3F80, 0xC000, 0x7F7F, 0x0001, 0x7F80, 0x8000};
  for (const bool is_half : {true, false}) {
    std::vector<std::byte> bytes(12);
    std::memcpy(bytes.data(), (is_half ? half : bfloat).data(), 12);
    tensors.back().type = is_half ? DataType::kF16 : DataType::kBF16;
    tensors.back().bytes = Blob(std::move(bytes));
    std::vector<float> buffer(static_cast<size_t>(layout.count));
    ASSERT_TRUE(fill_parameters(layout, tensors, buffer.data()).ok());
    const float* read = buffer.data() + layout.final_norm;
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
