#include "kernels/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numbers>

#include "tests/store/scratch_folder.h"

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

/// For a family whose config has the number of key-value heads.
Json of(const std::string& model_type) {
  return base().set("model_type", model_type).set("num_key_value_heads", 2);
}

Json mixture(const std::string& model_type) {
  Json json = of(model_type);
  json.set(model_type == "glm4_moe" ? "n_routed_experts" : "num_experts", 8);
  return json.set("num_experts_per_tok", 2).set("moe_intermediate_size", 24);
}

Result<ModelConfig> read(const Json& json) {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json") << json.dump();
  return read_model_config(folder);
}

std::string fault(const Json& json) {
  const auto config = read(json);
  return config.ok() ? "" : config.error().text();
}

TEST(ModelConfig, SaysWhichFileIsMissingOrBroken) {
  const auto folder = new_scratch_folder();
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
  EXPECT_THAT(fault(base().set("hidden_size", int64_t{1} << 40)),
              HasSubstr("it is a whole number from 1 to 2147483647"));
  EXPECT_THAT(fault(base().set("vocab_size", "many")), HasSubstr("'vocab_size'"));
  EXPECT_THAT(fault(base().set("num_key_value_heads", 3)), HasSubstr("not a multiple of 3"));
  EXPECT_THAT(fault(base().set("head_dim", 15)), HasSubstr("15 of the 15 channels"));
  EXPECT_THAT(fault(base().set("hidden_act", "gelu")), HasSubstr("'hidden_act' is \"gelu\""));
  EXPECT_THAT(fault(base().set("rms_norm_eps", 0)), HasSubstr("'rms_norm_eps'"));
  EXPECT_THAT(fault(base().set("tie_word_embeddings", 1)), HasSubstr("'tie_word_embeddings'"));
  EXPECT_THAT(fault(base().set("eos_token_id", "end")), HasSubstr("'eos_token_id'"));
}

TEST(ModelConfig, KnowsTheDefaultsOfEachFamily) {
  const auto llama = read(base()).value();
  EXPECT_EQ(llama.attention.num_kv_heads, 4);
  EXPECT_EQ(llama.attention.head_dim, 16);
  EXPECT_FALSE(llama.attention.has_qk_norm);
  const auto qwen = read(of("qwen3")).value();
  EXPECT_EQ(qwen.attention.head_dim, 128);
  EXPECT_TRUE(qwen.attention.has_qk_norm);
  EXPECT_FALSE(qwen.attention.has_qkv_bias);
  const auto older = read(of("qwen2").set("attention_bias", false)).value();
  EXPECT_EQ(older.attention.head_dim, 16);
  EXPECT_TRUE(older.attention.has_qkv_bias);
  EXPECT_FALSE(older.attention.has_out_bias);
  EXPECT_THAT(fault(base().set("model_type", "qwen3")), HasSubstr("'num_key_value_heads'"));
  const auto glm = read(mixture("glm4_moe")).value();
  EXPECT_EQ(glm.rms_norm_epsilon, 1e-5);
  EXPECT_EQ(glm.attention.rotary_dim, 8);
}

TEST(ModelConfig, RefusesWhatItDoesNotUnderstand) {
  EXPECT_THAT(fault(base().set("logit_softcap", 30).set("mup", true)),
              HasSubstr("'logit_softcap', 'mup' are not known for this model type"));
  EXPECT_EQ(fault(base().set("logit_softcap", Json()).set("mup", Json::array())), "");
  EXPECT_THAT(fault(base().set("attention_dropout", 0.1)), HasSubstr("'attention_dropout' is 0.1"));
  EXPECT_THAT(fault(base().set("pretraining_tp", 2)), HasSubstr("'pretraining_tp' is 2"));
  EXPECT_THAT(fault(base().set("quantization_config", Json::object().set("bits", 4))),
              HasSubstr("quantized"));
  EXPECT_THAT(fault(of("qwen3").set("use_sliding_window", true)), HasSubstr("use_sliding_window"));
  EXPECT_EQ(fault(of("qwen2").set("use_sliding_window", false).set("sliding_window", 4096)), "");
  Json types = Json::array();
  const auto num_layers = of("qwen3").find("num_hidden_layers")->as_int();
  for (int64_t i = 0; i < num_layers; ++i) types.push_back("full_attention");
  EXPECT_EQ(fault(of("qwen3").set("layer_types", types)), "");
  types.push_back("full_attention");
  EXPECT_THAT(fault(of("qwen3").set("layer_types", types)), HasSubstr("'layer_types' has"));
  types.as_array().back() = "sliding_attention";
  EXPECT_THAT(fault(of("qwen3").set("layer_types", types)), HasSubstr("sliding_attention"));
}

TEST(ModelConfig, ChoosesTheSparseLayers) {
  const auto names = [](const ModelConfig& config) {
    std::string text;
    for (const auto& layer : config.layers) text += std::string(stage_name(layer.stages[1])) + " ";
    return text;
  };
  auto json = mixture("qwen3_moe").set("num_hidden_layers", 4);
  EXPECT_EQ(names(read(json).value()), "moe moe moe moe ");
  EXPECT_EQ(names(read(json.set("decoder_sparse_step", 2)).value()), "mlp moe mlp moe ");
  Json dense = Json::array();
  dense.push_back(3);
  EXPECT_EQ(names(read(json.set("mlp_only_layers", dense)).value()), "mlp moe mlp mlp ");
  json = mixture("glm4_moe").set("num_hidden_layers", 3);
  EXPECT_EQ(names(read(json).value()), "mlp moe moe ");
  EXPECT_EQ(names(read(json.set("first_k_dense_replace", 0)).value()), "moe moe moe ");
  EXPECT_EQ(names(read(json.set("first_k_dense_replace", 9)).value()), "mlp mlp mlp ");
}

TEST(ModelConfig, RefusesRoutersThatCannotBe) {
  EXPECT_THAT(fault(mixture("qwen3_moe").set("num_experts_per_tok", 9)), HasSubstr("9 of 8"));
  const auto glm = [](int groups, int kept) {
    return fault(mixture("glm4_moe").set("n_group", groups).set("topk_group", kept));
  };
  EXPECT_EQ(glm(4, 1), "");
  EXPECT_THAT(glm(3, 1), HasSubstr("not a multiple of 'n_group' 3"));
  EXPECT_THAT(glm(2, 3), HasSubstr("'topk_group' 3"));
  EXPECT_THAT(glm(8, 1), HasSubstr("have fewer"));
  auto none = mixture("qwen3_moe");
  EXPECT_THAT(fault(none.set("num_experts", Json())), HasSubstr("'num_experts'"));
  EXPECT_EQ(fault(none.set("num_local_experts", 8)), "");
}

TEST(ModelConfig, RefusesSizesBeyondReason) {
  EXPECT_THAT(fault(base().set("num_hidden_layers", 4097)), HasSubstr("at most 4096"));
  EXPECT_EQ(fault(base().set("num_hidden_layers", 4096)), "");
  const auto wide = base().set("hidden_size", INT32_MAX).set("intermediate_size", INT32_MAX);
  EXPECT_THAT(fault(Json(wide).set("head_dim", 64)), HasSubstr(" parameters"));
  EXPECT_THAT(fault(base().set("hidden_size", int64_t{INT32_MAX} + 1)), HasSubstr("hidden_size"));
  EXPECT_THAT(fault(mixture("qwen3_moe").set("num_experts", INT32_MAX)), HasSubstr(" tensors"));
  for (const int64_t layer : {int64_t{-1}, int64_t{2}, int64_t{1} << 32}) {
    Json layers = Json::array();
    layers.push_back(layer);
    EXPECT_THAT(fault(mixture("qwen3_moe").set("mlp_only_layers", layers)),
                HasSubstr("'mlp_only_layers' holds"));
  }
}

TEST(ModelConfig, SaysWhichSizesThisBuildCannotCompute) {
  const auto why = [](const Json& json) {
    const Status checked = check_is_supported(read(json).value());
    return checked.ok() ? "" : checked.error().text();
  };
  EXPECT_EQ(why(base().set("head_dim", 256)), "");
  EXPECT_THAT(why(base().set("head_dim", 264)), HasSubstr("'head_dim' 264"));
  EXPECT_THAT(why(base().set("head_dim", 12)), HasSubstr("'head_dim' 12"));
  EXPECT_EQ(why(mixture("qwen3_moe").set("num_experts", 1024)), "");
  EXPECT_THAT(why(mixture("qwen3_moe").set("num_experts", 1025)), HasSubstr("1025 experts"));
}

TEST(ModelConfig, ReadsTheSpellingsOfTransformersFourAndFive) {
  Json scaling = Json::object();
  scaling.set("rope_type", "llama3").set("factor", 8.0).set("low_freq_factor", 1.0);
  scaling.set("high_freq_factor", 4.0).set("original_max_position_embeddings", 32);
  const auto four = read(base().set("rope_theta", 5e5).set("rope_scaling", scaling)).value();
  const auto five = read(base().set("rope_parameters", scaling.set("rope_theta", 5e5))).value();
  EXPECT_EQ(four.rope.theta, 5e5);
  EXPECT_EQ(five.rope.theta, 5e5);
  EXPECT_EQ(rope_frequencies(four.rope, 16), rope_frequencies(five.rope, 16));
  EXPECT_EQ(read(base().set("rope_scaling", Json())).value().rope.kind, "default");
}

TEST(ModelConfig, RefusesRopeItDoesNotKnow) {
  Json scaling = Json::object();
  EXPECT_THAT(fault(base().set("rope_scaling", scaling.set("type", "longrope"))),
              HasSubstr("'longrope'"));
  EXPECT_THAT(fault(base().set("rope_scaling", scaling.set("type", "linear"))),
              HasSubstr("'factor'"));
  scaling.set("type", "llama3").set("factor", 8).set("high_freq_factor", 1);
  EXPECT_THAT(fault(base().set("rope_scaling", scaling)), HasSubstr("high_freq_factor"));
  EXPECT_THAT(fault(base().set("rope_scaling", 3)), HasSubstr("a number"));
  scaling = Json::object();
  scaling.set("type", "linear").set("factor", 2).set("mrope_section", 3);
  EXPECT_THAT(fault(base().set("rope_scaling", scaling)),
              HasSubstr("the rope parameters: 'mrope_section' is not known"));
}

TEST(ModelConfig, Llama3KeepsShortWavesAndStretchesLongOnes) {
  Json scaling = Json::object();
  scaling.set("rope_type", "llama3").set("factor", 8.0).set("low_freq_factor", 1.0);
  scaling.set("high_freq_factor", 4.0).set("original_max_position_embeddings", 32);
  const auto plain = rope_frequencies(read(base()).value().rope, 16);
  const auto scaled = rope_frequencies(read(base().set("rope_scaling", scaling)).value().rope, 16);
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

TEST(ModelConfig, YarnFadesFromShortWavesToLongOnesAndScalesTheAngles) {
  Json scaling = Json::object();
  scaling.set("rope_type", "yarn").set("factor", 8.0);
  scaling.set("original_max_position_embeddings", 32);
  const auto config = read(base().set("rope_scaling", scaling)).value();
  EXPECT_DOUBLE_EQ(config.rope.attention_factor, 0.1 * std::log(8.0) + 1);
  const auto plain = rope_frequencies(read(base()).value().rope, 16);
  const auto scaled = rope_frequencies(config.rope, 16);
  EXPECT_FLOAT_EQ(scaled.front(), plain.front());
  EXPECT_FLOAT_EQ(scaled.back(), plain.back() / 8);
  scaling.set("mscale", 1.0).set("mscale_all_dim", 0.5);
  EXPECT_DOUBLE_EQ(read(base().set("rope_scaling", scaling)).value().rope.attention_factor,
                   (0.1 * std::log(8.0) + 1) / (0.05 * std::log(8.0) + 1));
  scaling.set("attention_factor", 1.25);
  EXPECT_DOUBLE_EQ(read(base().set("rope_scaling", scaling)).value().rope.attention_factor, 1.25);
}

TEST(ModelConfig, CollectsTheEndsOfSequenceOfBothFiles) {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json") << base().set("eos_token_id", 7).dump();
  std::ofstream(folder / "generation_config.json") << R"({"eos_token_id": [9, 7]})";
  EXPECT_THAT(read_model_config(folder).value().eos_ids, ElementsAre(7, 9));
}

}  // namespace
}  // namespace primerl
