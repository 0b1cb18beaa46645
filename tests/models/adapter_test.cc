#include "kernels/models/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "kernels/models/adapter_folder.h"
#include "kernels/weights/safetensors.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

std::string mixture_text(int layers = 2) {
  return R"({"model_type": "glm4_moe", "vocab_size": 11, "hidden_size": 16,
    "num_hidden_layers": )" +
         std::to_string(layers) + R"(, "num_attention_heads": 2, "num_key_value_heads": 1,
    "head_dim": 8, "intermediate_size": 10, "moe_intermediate_size": 6, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
    "max_position_embeddings": 64, "tie_word_embeddings": false, "eos_token_id": 1})";
}

ModelConfig model(int layers = 2) {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json") << mixture_text(layers);
  return read_model_config(folder).value();
}

std::string fault(const Status& status) { return status.ok() ? "" : status.error().text(); }

TEST(AdapterConfig, NamesInvalidFields) {
  EXPECT_EQ(fault(validate({})), "");
  EXPECT_EQ(fault(validate({.rank = 512, .targets = {"q_proj", "down_proj"}})), "");
  for (const int32_t rank : {0, 513})
    EXPECT_THAT(fault(validate({.rank = rank})),
                HasSubstr("rank is " + std::to_string(rank) + ", it must be 1 to 512"));
  EXPECT_THAT(fault(validate({.alpha = 0})), HasSubstr("alpha is 0, it must be above 0"));
  EXPECT_THAT(fault(validate({.targets = {}})), HasSubstr("has no targets"));
  EXPECT_EQ(fault(validate({.targets = {"lm_head"}})), "");
  EXPECT_EQ(fault(validate({.targets = {"all-linear", "lm_head"}})), "");
  const auto unknown = fault(validate({.targets = {"q_proj", "embed_tokens"}}));
  EXPECT_THAT(unknown, HasSubstr("unknown target 'embed_tokens'"));
  EXPECT_THAT(unknown, HasSubstr("q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, "
                                 "lm_head, or all-linear, alone or with lm_head"));
  EXPECT_THAT(fault(validate({.targets = {"all-linear", "q_proj"}})), HasSubstr("'all-linear'"));
}

TEST(AdapterConfig, IsScaledAsPeftScales) {
  EXPECT_EQ(scaling_of({.rank = 8, .alpha = 16}), 2);
  EXPECT_EQ(scaling_of({.rank = 16, .alpha = 8, .is_rank_stabilized = true}), 2);
}

TEST(AdapterTable, HasAPlaceForEveryLinearOfDenseSharedAndRoutedExperts) {
  const TensorTable base(model());
  const AdapterTable table(base, {.rank = 3, .alpha = 6});
  // 4 of attention in both layers, 3 dense, 3 shared, 4 experts of 3.
  EXPECT_EQ(table.linears().size(), 8U + 3 + 3 + 12);
  EXPECT_EQ(table.tensors().slices().size(), 2 * table.linears().size() + 1);
  for (const auto& linear : table.linears()) {
    const Parameter& fused = base.parameters()[linear.parameter];
    const Parameter& a = table.tensors().parameters()[linear.a];
    const Parameter& b = table.tensors().parameters()[linear.b];
    EXPECT_THAT(a.shape, ElementsAre(3, linear.inputs));
    EXPECT_THAT(b.shape, ElementsAre(linear.outputs, 3));
    EXPECT_EQ(a.name, "base_model.model." + linear.module + ".lora_A.weight");
    EXPECT_EQ(b.name, "base_model.model." + linear.module + ".lora_B.weight");
    EXPECT_EQ(fused.shape.back(), linear.inputs);
    EXPECT_LE(linear.column + linear.outputs, fused.shape[fused.shape.size() - 2]);
  }
  const auto find = [&](std::string_view module) {
    for (const auto& linear : table.linears())
      if (linear.module == module) return linear;
    return AdapterLinear{};
  };
  const auto up = find("model.layers.1.mlp.experts.3.up_proj");
  EXPECT_EQ(base.parameters()[up.parameter].name, "layers.1.moe.experts_gate_up");
  EXPECT_EQ(up.group, 3);
  EXPECT_EQ(up.column, 6);
  const auto value = find("model.layers.0.self_attn.v_proj");
  EXPECT_EQ(base.parameters()[value.parameter].name, "layers.0.attention.qkv");
  EXPECT_EQ(value.column, 16 + 8);
  EXPECT_EQ(find("model.layers.1.mlp.shared_experts.down_proj").inputs, 6);
}

TEST(AdapterTable, HasOnlyTheNamedLinears) {
  const AdapterTable table(TensorTable(model()), {.targets = {"q_proj", "o_proj"}});
  std::set<std::string> words;
  for (const auto& linear : table.linears())
    words.insert(linear.module.substr(linear.module.rfind('.') + 1));
  EXPECT_THAT(words, ElementsAre("o_proj", "q_proj"));
}

std::vector<float> initialized(const AdapterTable& table) {
  std::vector<float> buffer(static_cast<size_t>(table.tensors().count()), 7);
  initialize_adapter(table, buffer.data());
  return buffer;
}

TEST(AdapterTable, BeginsWithAUniformAndBZero) {
  const TensorTable base(model());
  const AdapterTable table(base, {.rank = 64, .alpha = 32, .init_seed = 4});
  const auto buffer = initialized(table);
  EXPECT_EQ(buffer, initialized(table));
  EXPECT_NE(buffer, initialized(AdapterTable(base, {.rank = 64, .alpha = 32, .init_seed = 5})));
  for (const auto& linear : table.linears()) {
    const Parameter& a = table.tensors().parameters()[linear.a];
    const Parameter& b = table.tensors().parameters()[linear.b];
    double square = 0;
    const double bound = 1 / std::sqrt(static_cast<double>(linear.inputs));
    for (int64_t i = 0; i < a.count; ++i) {
      const double value = buffer[static_cast<size_t>(a.offset + i)];
      EXPECT_LE(std::abs(value), bound);
      square += value * value / static_cast<double>(a.count);
    }
    EXPECT_NEAR(std::sqrt(square), bound / std::sqrt(3.0), 0.1 * bound);
    for (int64_t i = 0; i < b.count; ++i) EXPECT_EQ(buffer[static_cast<size_t>(b.offset + i)], 0);
  }
  EXPECT_EQ(buffer[static_cast<size_t>(table.tensors().at("scaling").offset)], 0.5F);
}

/// Every linear, by the names in the files, and no other value.
TEST(AdapterTable, IsMergedIntoTheLinearsItIsBeside) {
  const TensorTable base(model());
  const AdapterTable table(base, {.rank = 3, .alpha = 6, .targets = {"k_proj", "up_proj"}});
  std::vector<float> weights(static_cast<size_t>(base.count()));
  std::vector<float> adapter(static_cast<size_t>(table.tensors().count()));
  randomize_parameters(base, 1, 0.5, weights.data());
  randomize_parameters(table.tensors(), 2, 0.5, adapter.data());
  auto merged = weights;
  merge_adapter(base, table, adapter.data(), merged.data());
  std::map<std::string, std::pair<const float*, const float*>> linears;  // A and B by module
  for (const TensorSlice& slice : table.tensors().slices()) {
    for (const auto& [end, is_a] : {std::pair(".lora_A.weight", true), {".lora_B.weight", false}}) {
      if (!slice.name.ends_with(end)) continue;
      constexpr std::string_view kBegin = "base_model.model.";
      const auto module = slice.name.substr(
          kBegin.size(), slice.name.size() - kBegin.size() - std::string_view(end).size());
      (is_a ? linears[module].first : linears[module].second) = adapter.data() + slice.offset;
    }
  }
  // Two layers of attention, one dense MLP, four routed experts and one shared.
  EXPECT_EQ(linears.size(), 2U + 1 + 4 + 1);
  for (const TensorSlice& slice : base.slices()) {
    const std::string module = slice.name.substr(0, slice.name.rfind(".weight"));
    const auto found = linears.find(module);
    for (int64_t i = 0; i < slice.count; ++i) {
      double expected = weights[static_cast<size_t>(slice.offset + i)];
      if (found != linears.end()) {
        const int64_t inputs = slice.shape.back(), row = i / inputs, column = i % inputs;
        for (int64_t r = 0; r < 3; ++r)
          expected += 2.0 * double{found->second.second[row * 3 + r]} *
                      double{found->second.first[r * inputs + column]};
      }
      ASSERT_NEAR(merged[static_cast<size_t>(slice.offset + i)], expected, 1e-6)
          << slice.name << " " << i;
    }
  }
}

TEST(AdapterConfig, IsReadFromTheTensorsOfASnapshot) {
  const TensorTable base(model());
  const AdapterTable table(base, {.rank = 5, .targets = {"k_proj", "down_proj"}});
  const auto buffer = initialized(table);
  const auto tensors = copy_parameters(table.tensors(), buffer.data());
  const auto told = adapter_config_of(base, tensors);
  ASSERT_TRUE(told.ok()) << told.error().text();
  EXPECT_EQ(told->rank, 5);
  EXPECT_THAT(told->targets, ElementsAre("down_proj", "k_proj"));
  const auto fault_of = [&](auto&& change) {
    auto changed = tensors;
    change(changed);
    const auto result = adapter_config_of(base, changed);
    return result.ok() ? "" : result.error().text();
  };
  EXPECT_THAT(fault_of([](auto& all) { all.pop_back(); }), HasSubstr("'scaling'"));
  EXPECT_THAT(fault_of([](auto& all) { all.erase(all.begin()); }), HasSubstr("is missing"));
  EXPECT_THAT(fault_of([](auto& all) { all[2].shape[0] += 1; }), HasSubstr("has rank 6, others"));
  EXPECT_THAT(fault_of([](auto& all) { all[0].name = "model.norm.weight"; }),
              HasSubstr("'model.norm.weight' does not belong to an adapter"));
  EXPECT_THAT(fault_of([](auto& all) {
                all[0].name = "base_model.model.model.embed_tokens.lora_A.weight";
              }),
              HasSubstr("is for 'embed_tokens', which adapters"));
  EXPECT_THAT(fault_of([](auto& all) { all.clear(); }), HasSubstr("no tensor of an adapter"));
}

class AdapterFolderTest : public ::testing::Test {
 protected:
  AdapterFolderTest() : folder_(new_scratch_folder()), table_(base_, config_) {
    buffer_ = initialized(table_);
    const Status written = write_adapter_folder(folder_, config_, "some/base",
                                                view_parameters(table_.tensors(), buffer_.data()));
    CHECK(written.ok(), written.error().text());
  }

  std::string config_text() const {
    std::ifstream file(folder_ / "adapter_config.json");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set(const std::string& key, Json value) {
    Json json = parse_json(config_text(), "config").value();
    json.set(key, std::move(value));
    std::ofstream(folder_ / "adapter_config.json") << json.dump(2);
  }
  std::string read_fault() const {
    const auto read = read_adapter_folder(folder_, model_);
    return read.ok() ? "" : read.error().text();
  }
  /// The error of reading if `key` has `value`; the file is restored afterwards.
  std::string fault_with(const std::string& key, Json value) {
    const std::string before = config_text();
    set(key, std::move(value));
    const std::string text = read_fault();
    std::ofstream(folder_ / "adapter_config.json") << before;
    return text;
  }

  const ModelConfig model_ = model();
  const TensorTable base_{model_};
  const AdapterConfig config_{.rank = 4, .alpha = 12, .init_seed = 9};
  const fs::path folder_;
  const AdapterTable table_;
  std::vector<float> buffer_;
};

/// Folder and snapshot convert into each other with the same bits, for any model.
TEST_F(AdapterFolderTest, StoresASnapshotOfAnyModel) {
  auto config = config_;
  config.is_rank_stabilized = true;  // a scaling that is not a fraction of small integers
  const AdapterTable table(base_, config);
  std::vector<float> buffer = initialized(table);
  const auto tensors = copy_parameters(table.tensors(), buffer.data());
  const auto told = config_of_snapshot(tensors).value();
  EXPECT_EQ(told.rank, 4);
  EXPECT_EQ(static_cast<float>(scaling_of(told)), static_cast<float>(scaling_of(config)));
  const auto folder = new_scratch_folder();
  ASSERT_TRUE(write_adapter_folder(folder, told, "some/base", tensors).ok());
  const auto again = read_adapter_tensors(folder).value();
  ASSERT_EQ(again.size(), tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(again[i].name, tensors[i].name);
    EXPECT_EQ(again[i].shape, tensors[i].shape);
    EXPECT_TRUE(again[i].bytes == tensors[i].bytes) << tensors[i].name;
  }
  EXPECT_EQ(fault(check_same_adapter(config, read_adapter_folder(folder, model_)->config)), "");
}

TEST_F(AdapterFolderTest, IsReadAsItWasWritten) {
  const auto read = read_adapter_folder(folder_, model_);
  ASSERT_TRUE(read.ok()) << read.error().text();
  EXPECT_EQ(read->base, "some/base");
  EXPECT_EQ(fault(check_same_adapter(config_, read->config)), "");
  std::vector<float> again(buffer_.size());
  ASSERT_TRUE(fill_parameters(table_.tensors(), read->tensors, again.data()).ok());
  EXPECT_EQ(again, buffer_);
  const auto tensors = read_safetensors(folder_ / "adapter_model.safetensors").value();
  for (const auto& tensor : tensors)
    EXPECT_TRUE(tensor.name.starts_with("base_model.model.model.layers.")) << tensor.name;
}

TEST_F(AdapterFolderTest, RefusesUnsupportedOptionsByName) {
  EXPECT_THAT(fault_with("use_dora", true),
              HasSubstr("'use_dora' is true, which is not supported"));
  EXPECT_THAT(fault_with("modules_to_save", Json::list(std::vector<std::string>{"lm_head"})),
              HasSubstr("'modules_to_save' is [\"lm_head\"]"));
  EXPECT_THAT(fault_with("rank_pattern", Json::object().set("q_proj", 4)),
              HasSubstr("'rank_pattern'"));
  EXPECT_THAT(fault_with("alpha_pattern", Json::object().set("q_proj", 4)),
              HasSubstr("'alpha_pattern'"));
  EXPECT_THAT(fault_with("layers_to_transform", Json::list(std::vector<int>{1})),
              HasSubstr("'layers_to_transform'"));
  EXPECT_THAT(fault_with("an_option_of_tomorrow", true), HasSubstr("'an_option_of_tomorrow'"));
  EXPECT_THAT(fault_with("lora_dropout", 1.0), HasSubstr("dropout is 1, it must be from 0 to"));
  EXPECT_THAT(fault_with("bias", "all"), HasSubstr("'bias' is \"all\""));
  EXPECT_THAT(fault_with("init_lora_weights", "pissa"), HasSubstr("it may change the base"));
  EXPECT_THAT(fault_with("peft_type", "IA3"), HasSubstr("only \"LORA\" is known"));
  EXPECT_THAT(fault_with("target_modules", ".*proj"), HasSubstr("a list of names"));
  EXPECT_THAT(fault_with("target_modules", Json::list(std::vector<std::string>{"embed_tokens"})),
              HasSubstr("unknown target 'embed_tokens'"));
  EXPECT_THAT(fault_with("r", 1000000000000), HasSubstr("rank is 513"));
  // Values that peft writes if an option is off.
  EXPECT_EQ(fault_with("lora_dropout", 0.1), "") << "only for training";
  for (const char* key : {"use_dora", "lora_bias"}) EXPECT_EQ(fault_with(key, false), "") << key;
  EXPECT_EQ(fault_with("rank_pattern", Json::object()), "");
  EXPECT_EQ(fault_with("exclude_modules", Json()), "");
}

TEST_F(AdapterFolderTest, ReadsNullAsTheDefaultOfPeft) {
  for (const char* key : {"use_rslora", "lora_dropout", "bias", "init_lora_weights", "use_dora"})
    EXPECT_EQ(fault_with(key, Json()), "") << key;
  EXPECT_THAT(fault_with("r", Json()), HasSubstr("says rank 8"));
  EXPECT_EQ(fault_with("lora_alpha", Json()), "");
  EXPECT_EQ(fault_with("_of_a_tool", true), "");
  EXPECT_EQ(fault_with("fan_in_fan_out", true), "") << "peft drops it for linear layers";
}

TEST_F(AdapterFolderTest, NamesTensorsThatDoNotFit) {
  EXPECT_THAT(fault_with("r", 8), HasSubstr("the model needs [8, 16]"));
  EXPECT_THAT(fault_with("r", 8), HasSubstr("says rank 8"));
  EXPECT_THAT(fault_with("target_modules", Json::list(std::vector<std::string>{"q_proj"})),
              HasSubstr("down_proj.lora_A.weight' of shape [4, 10] is not part"));
  const auto file = folder_ / "adapter_model.safetensors";
  auto tensors = read_safetensors(file).value();
  const auto lost = tensors.back();
  tensors.pop_back();
  ASSERT_TRUE(write_safetensors(file, tensors).ok());
  EXPECT_THAT(read_fault(), HasSubstr("'" + lost.name + "' of shape [8, 4] is missing"));
  tensors.push_back(lost);
  tensors.back().name = "lm_head.weight";
  ASSERT_TRUE(write_safetensors(file, tensors).ok());
  EXPECT_THAT(read_fault(), HasSubstr("'lm_head.weight' of shape [8, 4] is not part"));
}

TEST_F(AdapterFolderTest, NamesAnotherBase) {
  const auto other = new_scratch_folder() / "other";
  fs::create_directories(other);
  std::ofstream(other / "config.json") << mixture_text(3);
  EXPECT_THAT(fault_with("base_model_name_or_path", other.string()),
              HasSubstr("'" + other.string() + "', whose config.json describes another model"));
  EXPECT_THAT(read_adapter_folder(folder_, model(3)).error().text(), HasSubstr("is missing"));
  // The same model, with weights of another type.
  Json same = parse_json(mixture_text(), "config").value();
  std::ofstream(other / "config.json") << same.set("dtype", "bfloat16").dump(2);
  EXPECT_EQ(fault_with("base_model_name_or_path", other.string()), "");
  same.set("rope_parameters", Json::object().set("rope_theta", 1e4)).set("use_cache", false);
  std::ofstream(other / "config.json") << same.dump(2);
  EXPECT_EQ(fault_with("base_model_name_or_path", other.string()), "") << "in other words";
}

TEST_F(AdapterFolderTest, CannotStartTrainingWithNanOrInfinity) {
  EXPECT_TRUE(read_adapter_start(folder_, model_, config_).ok());
  const auto file = folder_ / "adapter_model.safetensors";
  const auto tensors = read_safetensors(file).value();
  const auto fault_with_last = [&](float last) {
    auto changed = tensors;
    WeightTensor& tensor = changed.back();
    std::vector<std::byte> bytes(tensor.bytes.bytes().begin(), tensor.bytes.bytes().end());
    std::memcpy(bytes.data() + bytes.size() - sizeof(last), &last, sizeof(last));
    tensor.bytes = Blob(std::move(bytes));
    CHECK(write_safetensors(file, changed).ok(), "no file");
    const auto read = read_adapter_start(folder_, model_, config_);
    return read.ok() ? "" : read.error().text();
  };
  const auto place = tensors.back().bytes.size() / sizeof(float) - 1;
  EXPECT_THAT(fault_with_last(NAN), HasSubstr(fmt::format("number {} of tensor '{}' is nan", place,
                                                          tensors.back().name)));
  EXPECT_THAT(fault_with_last(-INFINITY), HasSubstr("is -inf"));
  EXPECT_THAT(fault_with_last(NAN), HasSubstr(file.string() + ": number"));
  EXPECT_EQ(fault_with_last(3e38F), "");
}

TEST_F(AdapterFolderTest, IsFoundInTheWeightsOfACheckpoint) {
  const auto checkpoint = new_scratch_folder() / "step_50";
  fs::create_directories(checkpoint);
  EXPECT_THAT(
      read_adapter_folder(checkpoint, model_).error().text(),
      AllOf(HasSubstr("adapter_config.json"), Not(HasSubstr("the adapter of this checkpoint"))));
  fs::copy(folder_, checkpoint / "weights", fs::copy_options::recursive);
  EXPECT_THAT(
      read_adapter_folder(checkpoint, model_).error().text(),
      HasSubstr("the adapter of this checkpoint is in '" + (checkpoint / "weights").string()));
}

TEST_F(AdapterFolderTest, CannotStartAnotherAdapter) {
  auto wanted = config_;
  wanted.rank = 8;
  EXPECT_THAT(read_adapter_start(folder_, model_, wanted).error().text(),
              HasSubstr("adapter_config.json: the adapter there has rank 4, this one 8"));
}

TEST_F(AdapterFolderTest, DetectsAnotherAdapterOfTheSameModel) {
  auto other = config_;
  other.init_seed = 1;
  EXPECT_EQ(fault(check_same_adapter(config_, other)), "");
  other.rank = 8;
  EXPECT_THAT(fault(check_same_adapter(config_, other)), HasSubstr("has rank 8, this one 4"));
  other = config_;
  other.alpha = 16;
  EXPECT_THAT(fault(check_same_adapter(config_, other)), HasSubstr("scaled by 4"));
  other = config_;
  other.targets = {"q_proj"};
  EXPECT_THAT(fault(check_same_adapter(config_, other)), HasSubstr("targets q_proj, this one"));
}

}  // namespace
}  // namespace primerl
