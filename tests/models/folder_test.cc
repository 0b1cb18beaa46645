#include "kernels/models/folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

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

TEST(ModelFolder, SaysWhereItCouldNotWrite) {
  const auto from = config_folder();
  const auto model = read_model_folder(from).value();
  const Status written = write_model_folder(from / "config.json" / "x", model, {});
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().text(), ::testing::HasSubstr("config.json/x"));
}

}  // namespace
}  // namespace primerl
