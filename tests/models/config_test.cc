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
using ::testing::IsEmpty;

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

TEST(ModelConfig, RefusesWhatChangesTheArithmetic) {
  EXPECT_THAT(fault(base().set("logit_softcap", 30)), HasSubstr("'logit_softcap' is 30, which is"));
  EXPECT_THAT(fault(base().set("logits_scaling", 8)), HasSubstr("'logits_scaling' is 8; only 1.0"));
  EXPECT_THAT(fault(base().set("use_mrope", true)), HasSubstr("'use_mrope' is true"));
  EXPECT_THAT(fault(base().set("no_rope_layers", Json::list(std::vector{1, 0}))),
              HasSubstr("'no_rope_layers' has 0: layers without rotary embedding"));
  EXPECT_THAT(fault(base().set("attention_dropout", 0.1)), HasSubstr("'attention_dropout' is 0.1"));
  for (const char* key : {"quantization_config", "quantization", "compression_config"})
    EXPECT_THAT(fault(base().set(key, Json::object().set("bits", 4))),
                HasSubstr(std::string("its weights are quantized ('") + key + "')"));
}

TEST(ModelConfig, RefusesWindowsThatASequenceCanExceed) {
  const auto with_window = [](const Json& window, int64_t first_layer, bool is_used = true) {
    Json json = of("qwen3").set("use_sliding_window", is_used).set("sliding_window", window);
    return fault(json.set("max_window_layers", first_layer).set("max_position_embeddings", 8192));
  };
  EXPECT_THAT(with_window(4096, 0), HasSubstr("sliding windows are not supported"));
  EXPECT_EQ(with_window(4096, 0, false), "");
  EXPECT_THAT(with_window(8191, 1), HasSubstr("sliding windows are not supported"));
  EXPECT_EQ(with_window(8192, 1), "") << "no sequence is longer";
  EXPECT_EQ(with_window(4096, 2), "") << "both layers come before it";
  EXPECT_EQ(with_window(Json(), 0), "");
  Json absent = of("qwen2").set("use_sliding_window", true).set("max_position_embeddings", 8192);
  EXPECT_THAT(fault(absent), HasSubstr("sliding windows are not supported"));
  Json types = Json::list(std::vector<std::string>{"full_attention", "full_attention"});
  Json typed = of("qwen3").set("max_position_embeddings", 8192);
  EXPECT_EQ(fault(typed.set("layer_types", types)), "");
  types.as_array().back() = "sliding_attention";
  EXPECT_THAT(fault(typed.set("layer_types", types)), HasSubstr("'layer_types' has \"sliding_a"));
  types.push_back("full_attention");
  typed.set("sliding_window", Json());
  EXPECT_THAT(fault(typed.set("layer_types", types)), HasSubstr("'layer_types' has 3 entries"));
}

TEST(ModelConfig, KnowsThatAMistralWithoutTheKeyHasAWindow) {
  Json json = of("mistral").set("max_position_embeddings", 32768);
  EXPECT_THAT(fault(json),
              HasSubstr("'sliding_window' is 4096: sliding windows are not supported"));
  EXPECT_EQ(fault(json.set("sliding_window", Json())), "");
  EXPECT_EQ(fault(json.set("sliding_window", 32768)), "");
}

TEST(ModelConfig, PassesOverWhatChangesNothing) {
  Json json = base().set("_model_name_or_path", "x").set("unk_token_id", 0).set("mup", Json());
  json.set("temperature", 0.6).set("max_length", 20).set("use_flash_attn", true);
  json.set("pretraining_tp", 2).set("hidden_act", "swish").set("logits_scaling", 1.0);
  json.set("use_mrope", false).set("vision_config", Json()).set("quantization_config", Json());
  json.set("no_rope_layers", Json::list(std::vector{1, 1})).set("some_switch", false);
  const auto config = read(json);
  ASSERT_TRUE(config.ok()) << config.error().text();
  EXPECT_THAT(config->unknown_keys, IsEmpty());
  EXPECT_EQ(unknown_keys_text(*config), "");
}

TEST(ModelConfig, ListsWhatIsNotKnown) {
  Json rope = Json::object().set("rope_type", "linear").set("factor", 2).set("spiral", 3);
  const auto config = read(base().set("mup", true).set("rope_parameters", rope)).value();
  EXPECT_THAT(config.unknown_keys, ElementsAre("'rope_parameters.spiral'", "'mup'"));
  EXPECT_EQ(unknown_keys_text(config),
            "'rope_parameters.spiral', 'mup' of config.json are not known for model_type 'llama'");
  EXPECT_EQ(unknown_keys_text(read(base().set("mup", 1)).value()),
            "'mup' of config.json is not known for model_type 'llama'");
}

TEST(ModelConfig, ReadsNullKeyValueHeadsAsTheNumberOfHeads) {
  EXPECT_EQ(read(of("qwen3").set("num_key_value_heads", Json())).value().attention.num_kv_heads, 4);
}

TEST(ModelConfig, ComparesModelsNotFiles) {
  const auto same = [](const Json& a, const Json& b) {
    return is_same_model(read(a).value(), read(b).value());
  };
  const Json rope = Json::object().set("rope_theta", 5e5).set("rope_type", "default");
  EXPECT_TRUE(same(base().set("rope_theta", 5e5), base().set("rope_parameters", rope)));
  EXPECT_TRUE(same(base(), base().set("use_cache", false).set("dtype", "float32")));
  EXPECT_FALSE(same(base(), base().set("rope_theta", 5e5)));
  EXPECT_FALSE(same(base(), base().set("num_hidden_layers", 3)));
  EXPECT_FALSE(same(base(), base().set("intermediate_size", 128)));
  EXPECT_FALSE(same(base(), base().set("attention_bias", true)));
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
              HasSubstr("the rope parameters: 'mrope_section' is 3, which is not supported"));
  scaling = Json::object();
  scaling.set("type", "yarn").set("factor", 4).set("attn_factor", 1.5);
  EXPECT_THAT(fault(base().set("rope_scaling", scaling)), HasSubstr("'attn_factor' is 1.5"));
  EXPECT_EQ(fault(base().set("rope_scaling", scaling.set("attn_factor", 1))), "");
  EXPECT_EQ(fault(base().set("rope_scaling", scaling.set("type", "dynamic"))), "");
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
