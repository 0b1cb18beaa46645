// scripts/fetch_model.py: the special tokens of the folder that it makes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/cli/program.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

/// tokenizer_config.json after the script has named the special tokens of `config`.
Json named_tokens(const std::string& config, const std::string& tokenizer_config) {
  const ScratchFolder folder;
  write_text(folder.path() / "config.json", config);
  write_text(folder.path() / "tokenizer_config.json", tokenizer_config);
  write_text(folder.path() / "tokenizer.json",
             R"({"added_tokens": [{"id": 0, "content": "<|endoftext|>"},
                 {"id": 1, "content": "<|im_start|>"}, {"id": 2, "content": "<|im_end|>"}]})");
  const std::string script =
      "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import fetch_model; "
      "fetch_model.name_special_tokens(pathlib.Path(sys.argv[2]))";
  const auto end = Program({"/usr/bin/env", PRIMERL_PYTHON, "-B", "-c", script,
                            source_path("scripts"), folder.path().string()})
                       .wait();
  EXPECT_EQ(end.code, 0) << end.err;
  return *parse_json(*read_text_file(folder.path() / "tokenizer_config.json"), "config");
}

TEST(FetchModel, NamesTheSpecialTokensOfTheModel) {
  const Json named = named_tokens(
      R"({"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "unk_token_id": 0})",
      R"({"bos_token": "<|im_start|>", "eos_token": "<|im_start|>", "eos_token_id": 1,
          "pad_token_id": null, "model_type": "gpt2"})");
  EXPECT_EQ(*named.get_string("bos_token"), "<|im_start|>");
  EXPECT_EQ(*named.get_string("eos_token"), "<|im_end|>");
  EXPECT_EQ(*named.get_int("eos_token_id"), 2);
  EXPECT_EQ(*named.get_string("pad_token"), "<|im_end|>");
  EXPECT_EQ(*named.get_int("pad_token_id"), 2);
  EXPECT_EQ(*named.get_string("unk_token"), "<|endoftext|>");
  EXPECT_EQ(*named.get_string("model_type"), "gpt2") << "the rest stays";
}

TEST(FetchModel, LeavesTokensThatTheModelDoesNotName) {
  const Json named = named_tokens(R"({"eos_token_id": [2, 0], "pad_token_id": null})",
                                  R"({"eos_token": "<|im_start|>"})");
  EXPECT_EQ(*named.get_string("eos_token"), "<|im_start|>");
  EXPECT_EQ(named.find("pad_token"), nullptr);
}

}  // namespace
}  // namespace primerl
