#include "kernels/torch/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>

#include "tests/torch/tiny_model.h"

namespace primerl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Json base() {
  Json json = Json::object();
  json.set("model_type", "llama").set("vocab_size", 100).set("hidden_size", 64);
  json.set("intermediate_size", 96).set("num_hidden_layers", 2).set("num_attention_heads", 4);
  return json;
}

Result<ModelConfig> read(const Json& json) {
  const auto folder = testing::scratch_folder("config");
  std::ofstream(folder / "config.json") << json.dump();
  return read_model_config(folder);
}

std::string fault(const Json& json) {
  const auto config = read(json);
  return config.ok() ? "" : config.error().text();
}

TEST(ModelConfig, SaysWhichFileIsMissingOrBroken) {
  const auto folder = testing::scratch_folder("config");
  EXPECT_THAT(read_model_config(folder).error().text(), HasSubstr("config.json"));
  std::ofstream(folder / "config.json") << "{\"model_type\": }";
  EXPECT_THAT(read_model_config(folder).error().text(), HasSubstr("config.json:1:"));
  std::ofstream(folder / "config.json") << "[]";
  EXPECT_THAT(read_model_config(folder).error().text(), HasSubstr("an array, not an object"));
}

TEST(ModelConfig, ListsTheModelTypesItKnows) {
  auto json = base();
  json.set("model_type", "gpt2");
  EXPECT_THAT(fault(json), HasSubstr("'gpt2'"));
  EXPECT_THAT(fault(json), HasSubstr("llama"));
  EXPECT_THAT(fault(json), HasSubstr("qwen3"));
}

TEST(ModelConfig, NamesTheKeyThatIsWrong) {
  EXPECT_EQ(fault(base()), "");
  EXPECT_THAT(fault(base().set("hidden_size", 0)), HasSubstr("'hidden_size' is 0"));
  EXPECT_THAT(fault(base().set("vocab_size", "many")), HasSubstr("'vocab_size'"));
  EXPECT_THAT(fault(base().set("num_key_value_heads", 3)), HasSubstr("no multiple of 3"));
  EXPECT_THAT(fault(base().set("head_dim", 12)), HasSubstr("'head_dim' 12"));
  EXPECT_EQ(fault(base().set("head_dim", 256)), "");
  EXPECT_THAT(fault(base().set("head_dim", 264)), HasSubstr("'head_dim' 264"));
  EXPECT_THAT(fault(base().set("hidden_act", "gelu")), HasSubstr("'gelu'"));
  EXPECT_THAT(fault(base().set("rms_norm_eps", 0)), HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(fault(base().set("tie_word_embeddings", 1)), HasSubstr("'tie_word_embeddings'"));
  EXPECT_THAT(fault(base().set("eos_token_id", "end")), HasSubstr("'eos_token_id'"));
}

TEST(ModelConfig, KnowsTheDefaultsOfEachFamily) {
  const auto llama = read(base()).value();
  EXPECT_EQ(llama.num_kv_heads, 4);
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_FALSE(llama.qk_norm);
  const auto qwen = read(base().set("model_type", "qwen3")).value();
  EXPECT_EQ(qwen.head_dim, 128);
  EXPECT_TRUE(qwen.qk_norm);
  EXPECT_THAT(fault(base().set("model_type", "qwen3").set("use_sliding_window", true)),
              HasSubstr("use_sliding_window"));
}

TEST(ModelConfig, ReadsTheSpellingsOfTransformersFourAndFive) {
  Json scaling = Json::object();
  scaling.set("rope_type", "llama3").set("factor", 8.0).set("low_freq_factor", 1.0);
  scaling.set("high_freq_factor", 4.0).set("original_max_position_embeddings", 32);
  const auto four = read(base().set("rope_theta", 5e5).set("rope_scaling", scaling)).value();
  const auto five = read(base().set("rope_parameters", scaling.set("rope_theta", 5e5))).value();
  EXPECT_EQ(four.rope.theta, 5e5);
  EXPECT_EQ(five.rope.theta, 5e5);
  EXPECT_EQ(rope_frequencies(four), rope_frequencies(five));
  EXPECT_EQ(read(base().set("rope_scaling", Json())).value().rope.kind, "default");
}

TEST(ModelConfig, RefusesRopeItDoesNotKnow) {
  Json scaling = Json::object();
  EXPECT_THAT(fault(base().set("rope_scaling", scaling.set("type", "yarn"))), HasSubstr("'yarn'"));
  EXPECT_THAT(fault(base().set("rope_scaling", scaling.set("type", "linear"))),
              HasSubstr("'factor'"));
  scaling.set("type", "llama3").set("factor", 8).set("high_freq_factor", 1);
  EXPECT_THAT(fault(base().set("rope_scaling", scaling)), HasSubstr("high_freq_factor"));
  EXPECT_THAT(fault(base().set("rope_scaling", 3)), HasSubstr("a number"));
}

TEST(ModelConfig, Llama3KeepsShortWavesAndStretchesLongOnes) {
  Json scaling = Json::object();
  scaling.set("rope_type", "llama3").set("factor", 8.0).set("low_freq_factor", 1.0);
  scaling.set("high_freq_factor", 4.0).set("original_max_position_embeddings", 32);
  const auto plain = rope_frequencies(read(base()).value());
  const auto scaled = rope_frequencies(read(base().set("rope_scaling", scaling)).value());
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wave = 2 * std::numbers::pi / plain[i];
    if (wave < 8) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i]);
    } else if (wave > 32) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8);
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8);
    }
  }
}

TEST(ModelConfig, CollectsTheEndsOfSequenceOfBothFiles) {
  const auto folder = testing::scratch_folder("config");
  std::ofstream(folder / "config.json") << base().set("eos_token_id", 7).dump();
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": [9, 7]})";
  EXPECT_THAT(read_model_config(folder).value().eos_ids, ElementsAre(7, 9));
}

}  // namespace
}  // namespace primerl
