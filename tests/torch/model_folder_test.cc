#include "kernels/torch/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/torch/tiny_model.h"

namespace primerl {
namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

TEST(ModelFolder, CarriesTokenizerFilesOnByteForByteEvenWhenTheirFolderIsGone) {
  const auto from = testing::write_config({}, testing::scratch_folder("from"));
  const std::string odd("{\"x\": 1}\r\n\0\xFF end", 17);
  std::ofstream(from / "tokenizer.json", std::ios::binary) << odd;
  std::ofstream(from / "chat_template.jinja") << "{{ messages }}";
  std::ofstream(from / "notes.txt") << "not part of a model";
  const auto model = read_model_folder(from).value();
  std::filesystem::remove_all(from);
  const auto to = testing::scratch_folder("to") / "weights";
  const Status written = write_model_folder(to, model, {});
  ASSERT_TRUE(written.ok()) << written.error().text();
  EXPECT_EQ(text_of(to / "tokenizer.json"), odd);
  EXPECT_EQ(text_of(to / "chat_template.jinja"), "{{ messages }}");
  EXPECT_FALSE(std::filesystem::exists(to / "notes.txt"));
}

TEST(ModelFolder, WritesTheConfigItReadWithTheTypeOfTheWeights) {
  const auto from = testing::scratch_folder("from");
  const std::string head = R"({"model_type":"llama","vocab_size":9,"hidden_size":16,)"
                           R"("intermediate_size":8,"num_hidden_layers":1,)"
                           R"("num_attention_heads":2,"some_future_key":[1,{"a":null}])";
  for (const std::string key : {"dtype", "torch_dtype"}) {
    std::ofstream(from / "config.json") << head << ",\"" << key << "\":\"bfloat16\"}";
    const auto model = read_model_folder(from).value();
    const auto to = testing::scratch_folder("to");
    ASSERT_TRUE(write_model_folder(to, model, {}).ok());
    const auto json = parse_json(text_of(to / "config.json"), "config.json").value();
    EXPECT_EQ(json.get_string(key).value(), "float32");
    EXPECT_EQ(json.find("some_future_key")->dump(), R"([1,{"a":null}])");
    EXPECT_EQ(json.as_object().size(), 8U);
  }
}

TEST(ModelFolder, SaysWhereItCouldNotWrite) {
  const auto from = testing::write_config({}, testing::scratch_folder("from"));
  const auto model = read_model_folder(from).value();
  const Status written = write_model_folder(from / "config.json" / "x", model, {});
  ASSERT_FALSE(written.ok());
  EXPECT_THAT(written.error().text(), ::testing::HasSubstr("config.json/x"));
}

}  // namespace
}  // namespace primerl
