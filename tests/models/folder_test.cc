#include "kernels/models/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "kernels/models/tensors.h"
#include "kernels/weights/safetensors.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

std::filesystem::path config_folder() {
  const auto folder = new_scratch_folder();
  std::ofstream(folder / "config.json")
      << R"({"model_type":"llama","vocab_size":9,"hidden_size":16,"intermediate_size":8,)"
         R"("num_hidden_layers":1,"num_attention_heads":2})";
  return folder;
}

TEST(ModelFolder, CarriesTokenizerFilesOnByteForByteEvenWhenTheirFolderIsGone) {
  const auto from = config_folder();
  const std::string odd("{\"x\": 1}\r\n\0\xFF end", 17);
  std::ofstream(from / "tokenizer.json", std::ios::binary) << odd;
  std::ofstream(from / "chat_template.jinja") << "{{ messages }}";
  std::ofstream(from / "notes.txt") << "not part of a model";
  const auto model = read_model_folder(from).value();
  std::filesystem::remove_all(from);
  const auto to = new_scratch_folder() / "weights";
  const Status written = write_model_folder(to, model, {});
  ASSERT_TRUE(written.ok()) << written.error().text();
  EXPECT_EQ(text_of(to / "tokenizer.json"), odd);
  EXPECT_EQ(text_of(to / "chat_template.jinja"), "{{ messages }}");
  EXPECT_FALSE(std::filesystem::exists(to / "notes.txt"));
}

TEST(ModelFolder, WritesTheConfigItReadWithTheTypeOfTheWeights) {
  const auto from = new_scratch_folder();
  const std::string head = R"({"model_type":"llama","vocab_size":9,"hidden_size":16,)"
                           R"("intermediate_size":8,"num_hidden_layers":1,)"
                           R"("num_attention_heads":2,"architectures":["LlamaForCausalLM"])";
  for (const std::string key : {"dtype", "torch_dtype"}) {
    std::ofstream(from / "config.json") << head << ",\"" << key << "\":\"bfloat16\"}";
    const auto model = read_model_folder(from).value();
    const auto to = new_scratch_folder();
    ASSERT_TRUE(write_model_folder(to, model, {}).ok());
    const auto json = parse_json(text_of(to / "config.json"), "config.json").value();
    EXPECT_EQ(json.get_string(key).value(), "float32");
    EXPECT_EQ(json.find("architectures")->dump(), R"(["LlamaForCausalLM"])");
    EXPECT_EQ(json.as_object().size(), 8U);
  }
}

TEST(ModelFolder, WritesTheTypeUnderBothOfItsNamesIfBothWereThere) {
  const auto from = config_folder();
  Json json = parse_json(text_of(from / "config.json"), "config.json").value();
  json.set("dtype", "bfloat16").set("torch_dtype", "float16");
  std::ofstream(from / "config.json") << json.dump();
  const auto to = new_scratch_folder();
  ASSERT_TRUE(write_model_folder(to, read_model_folder(from).value(), {}).ok());
  const auto written = parse_json(text_of(to / "config.json"), "config.json").value();
  EXPECT_EQ(written.get_string("dtype").value(), "float32");
  EXPECT_EQ(written.get_string("torch_dtype").value(), "float32");
}

/// One shard for each list of tensors, and an index of (tensor, shard).
void write_shards(const std::filesystem::path& folder,
                  const std::vector<std::vector<WeightTensor>>& shards, const Json& index) {
  for (size_t i = 0; i < shards.size(); ++i)
    CHECK(write_safetensors(folder / fmt::format("{}.safetensors", i), shards[i]).ok(), "no file");
  std::ofstream(folder / "model.safetensors.index.json")
      << Json::object().set("weight_map", index).dump();
}

WeightTensor tensor_of(const std::string& name, float value) {
  std::vector<std::byte> bytes(sizeof(value));
  std::memcpy(bytes.data(), &value, sizeof(value));
  return {name, DataType::kF32, {1}, Blob(std::move(bytes))};
}

TEST(ModelFolder, ReadsShardsWhoseIndexIsNotExact) {
  const auto folder = new_scratch_folder();
  Json index = Json::object().set("a", "0.safetensors").set("b", "1.safetensors");
  index.set("lm_head.weight", "1.safetensors");
  write_shards(folder,
               {{tensor_of("a", 1), tensor_of("b", 9)}, {tensor_of("b", 2), tensor_of("c", 3)}},
               index);
  const auto tensors = read_model_tensors(folder);
  ASSERT_TRUE(tensors.ok()) << tensors.error().text();
  ASSERT_EQ(tensors->size(), 3U) << "a, b of its own shard, and c, which the index lacks";
  float value = 0;
  convert_to_f32((*tensors)[1], 0, 1, &value);
  EXPECT_EQ(value, 2);
}

TEST(ModelFolder, RefusesShardsThatContradictEachOther) {
  const auto folder = new_scratch_folder();
  const Json index = Json::object().set("a", "0.safetensors").set("b", "1.safetensors");
  write_shards(folder,
               {{tensor_of("a", 1), tensor_of("x", 1)}, {tensor_of("b", 2), tensor_of("x", 2)}},
               index);
  EXPECT_THAT(read_model_tensors(folder).error().text(),
              ::testing::HasSubstr("tensor 'x' is in another shard too"));
  write_shards(folder, {{tensor_of("a", 1)}, {tensor_of("c", 2)}}, index);
  EXPECT_THAT(read_model_tensors(folder).error().text(),
              ::testing::HasSubstr("tensor 'b' is missing, but"));
}

TEST(ModelFolder, SaysWhereItCouldNotWrite) {
  const auto from = config_folder();
  const auto model = read_model_folder(from).value();
  const Status written = write_model_folder(from / "config.json" / "x", model, {});
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().text(), ::testing::HasSubstr("config.json/x"));
}

}  // namespace
}  // namespace primerl
