// Adapters on the head, also of tied models: tensors, folders, merging.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "graph/base/files.h"
#include "kernels/models/adapter_folder.h"
#include "kernels/weights/safetensors.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string head_text(bool is_tied) {
  return R"({"model_type": "llama", "vocab_size": 11, "hidden_size": 16, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 10,
    "max_position_embeddings": 64, "eos_token_id": 1, "tie_word_embeddings": )" +
         std::string(is_tied ? "true}" : "false}");
}

ModelConfig head_model(bool is_tied) {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json") << head_text(is_tied);
  return read_model_config(folder).value();
}

std::vector<float> head_numbers(const AdapterTable& table) {
  std::vector<float> numbers(static_cast<size_t>(table.tensors().count()));
  randomize_parameters(table.tensors(), 3, 0.5, numbers.data());
  return numbers;
}

TEST(AdapterOnTheHead, IsThereIfItIsNamed) {
  for (const auto& [config, matrix] :
       {std::pair(head_model(false), "head"), std::pair(head_model(true), "embedding")}) {
    const TensorTable base(config);
    EXPECT_EQ(base.is_tied(), std::string_view(matrix) == "embedding");
    const AdapterTable table(base, {.rank = 3, .targets = {"lm_head", "q_proj"}});
    size_t num_heads = 0;
    for (const auto& linear : table.linears()) {
      if (linear.module != "lm_head") continue;
      ++num_heads;
      EXPECT_EQ(base.parameters()[linear.parameter].name, matrix);
      EXPECT_EQ(linear.column, 0);
      EXPECT_EQ(linear.group, 0);
      const Parameter& a = table.tensors().parameters()[linear.a];
      const Parameter& b = table.tensors().parameters()[linear.b];
      EXPECT_THAT(a.shape, ElementsAre(3, 16));
      EXPECT_THAT(b.shape, ElementsAre(11, 3));
      EXPECT_EQ(a.name, "base_model.model.lm_head.lora_A.weight");
      EXPECT_EQ(b.kind, ParameterKind::kHead) << "not an embedding, also if they are tied";
    }
    EXPECT_EQ(num_heads, 1U);
    EXPECT_THAT(named_targets({.targets = {"all-linear", "lm_head"}}),
                ElementsAre("down_proj", "gate_proj", "k_proj", "lm_head", "o_proj", "q_proj",
                            "up_proj", "v_proj"));
    const AdapterTable all(base, {.rank = 3});
    for (const auto& linear : all.linears())
      EXPECT_NE(linear.module, "lm_head") << "all-linear has no head, as in peft";
  }
}

/// In a tied model the embedding stays, and the merged model has a head.
TEST(AdapterOnTheHead, OfATiedModelIsMergedIntoAHeadOfItsOwn) {
  const ModelConfig config = head_model(true);
  const TensorTable base(config);
  const AdapterConfig wanted = {.rank = 2, .alpha = 6, .targets = {"lm_head"}};
  const AdapterTable table(base, wanted);
  std::vector<float> weights(static_cast<size_t>(base.count()));
  std::vector<float> adapter(static_cast<size_t>(table.tensors().count()));
  randomize_parameters(base, 1, 0.5, weights.data());
  randomize_parameters(table.tensors(), 2, 0.5, adapter.data());
  ModelFolder folder;
  folder.config = config;
  const auto merged =
      merge_adapter_folder(folder, copy_parameters(base, weights.data()),
                           {wanted, "", copy_parameters(table.tensors(), adapter.data())});
  ASSERT_TRUE(merged.ok()) << merged.error().text();
  EXPECT_TRUE(merged->has_new_head);
  EXPECT_FALSE(merged->model.config.is_tied);
  EXPECT_EQ(merged->model.config.source.get_bool("tie_word_embeddings").value(), false);
  const TensorTable untied(merged->model.config);
  ASSERT_EQ(merged->weights.size(), static_cast<size_t>(untied.count()));
  const float* a = adapter.data() + table.tensors().parameters()[0].offset;
  const float* b = adapter.data() + table.tensors().parameters()[1].offset;
  for (int64_t row = 0; row < 11; ++row)
    for (int64_t column = 0; column < 16; ++column) {
      const auto at = [&](const TensorTable& of, const std::vector<float>& values,
                          std::string_view name) {
        return values[static_cast<size_t>(of.at(name).offset + row * 16 + column)];
      };
      const float embedding = at(base, weights, "embedding");
      EXPECT_EQ(at(untied, merged->weights, "embedding"), embedding);
      const float added = 3 * (b[row * 2] * a[column] + b[row * 2 + 1] * a[16 + column]);
      EXPECT_NEAR(at(untied, merged->weights, "head"), embedding + added, 1e-6);
    }
  // Other targets leave it tied.
  const AdapterConfig of_layers = {.rank = 2, .targets = {"q_proj"}};
  const AdapterTable layers(base, of_layers);
  const auto numbers = std::vector<float>(static_cast<size_t>(layers.tensors().count()));
  const auto tied =
      merge_adapter_folder(folder, copy_parameters(base, weights.data()),
                           {of_layers, "", copy_parameters(layers.tensors(), numbers.data())});
  ASSERT_TRUE(tied.ok()) << tied.error().text();
  EXPECT_FALSE(tied->has_new_head);
  EXPECT_TRUE(tied->model.config.is_tied);
  EXPECT_EQ(tied->weights, weights);
}

/// peft writes a copy of the base's head beside an adapter on it, and loads it again.
TEST(AdapterOnTheHead, IsReadBesideTheCopyOfTheBase) {
  const auto base_folder = new_scratch_folder(), folder = new_scratch_folder();
  std::ofstream(base_folder / "config.json") << head_text(true);
  const ModelConfig config = head_model(true);
  const TensorTable base(config);
  std::vector<float> weights(static_cast<size_t>(base.count()));
  randomize_parameters(base, 1, 0.5, weights.data());
  const auto tensors = copy_parameters(base, weights.data());
  ASSERT_TRUE(write_safetensors(base_folder / "model.safetensors", tensors).ok());
  const AdapterConfig wanted = {.rank = 2, .alpha = 6, .targets = {"lm_head"}};
  const AdapterTable table(base, wanted);
  const auto values = head_numbers(table);
  const auto named = [](std::vector<WeightTensor> all, std::string_view name) {
    return *std::ranges::find(all, name, &WeightTensor::name);
  };
  const auto fault_with_copy = [&](const std::string& at, const WeightTensor* copy) {
    auto all = copy_parameters(table.tensors(), values.data());
    if (copy != nullptr) {
      all.push_back(*copy);
      all.back().name = "base_model.model.lm_head.base_layer.weight";
    }
    std::ranges::sort(all, {}, &WeightTensor::name);
    CHECK(write_adapter_folder(folder, wanted, at, all).ok(), "not written");
    const auto read = read_adapter_folder(folder, config);
    if (!read.ok()) return read.error().text();
    EXPECT_EQ(read->tensors.size(), 3U) << "A, B and the scaling";
    return std::string();
  };
  WeightTensor head = named(tensors, "model.embed_tokens.weight");
  EXPECT_EQ(fault_with_copy(base_folder.string(), nullptr), "");
  EXPECT_EQ(fault_with_copy(base_folder.string(), &head), "");
  auto numbers = std::vector<float>(static_cast<size_t>(11 * 16));
  std::memcpy(numbers.data(), head.bytes.bytes().data(), head.bytes.size());
  numbers.back() += 0.1F;
  const auto* bytes = reinterpret_cast<const std::byte*>(numbers.data());
  head.bytes = Blob(std::vector<std::byte>(bytes, bytes + head.bytes.size()));
  EXPECT_THAT(fault_with_copy(base_folder.string(), &head),
              HasSubstr("tensor 'base_model.model.lm_head.base_layer.weight' is not "
                        "'model.embed_tokens.weight' of the base '" +
                        base_folder.string() + "'"));
  EXPECT_EQ(fault_with_copy("somewhere/else", &head), "") << "the base is not on this machine";
  head.shape = {16, 11};
  EXPECT_THAT(fault_with_copy("somewhere/else", &head),
              HasSubstr("has shape [16, 11], the model's head has [11, 16]"));
}

TEST(AdapterOnTheHead, ThatIsTiedToOneOfTheEmbeddingIsRefused) {
  const ModelConfig config = head_model(true);
  const AdapterConfig wanted = {.rank = 4, .alpha = 12, .targets = {"lm_head"}};
  const AdapterTable table(TensorTable(config), wanted);
  const auto values = head_numbers(table);
  const auto folder = new_scratch_folder();
  const Status written = write_adapter_folder(folder, wanted, "some/base",
                                              view_parameters(table.tensors(), values.data()));
  ASSERT_TRUE(written.ok()) << written.error().text();
  const auto text = read_text_file(folder / "adapter_config.json", size_t{1} << 20).value();
  const auto fault_if_tied = [&](bool is_tied) {
    Json json = parse_json(text, "config").value();
    std::ofstream(folder / "adapter_config.json")
        << json.set("ensure_weight_tying", is_tied).dump(2);
    const auto read = read_adapter_folder(folder, config);
    return read.ok() ? "" : read.error().text();
  };
  EXPECT_EQ(fault_if_tied(false), "");
  EXPECT_THAT(fault_if_tied(true),
              HasSubstr("'ensure_weight_tying' is true, so the adapter of 'lm_head' is one of the "
                        "embedding too"));
}

}  // namespace
}  // namespace primerl
