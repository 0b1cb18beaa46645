/// Tokenizer folders for tests, in the test's folder for temporary files.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "graph/base/json.h"

namespace primerl::testing {

/// A folder that is removed after the test.
class TokenizerFolder {
 public:
  TokenizerFolder() {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::path(::testing::TempDir()) /
            (std::string("primerl_") + test->test_suite_name() + "_" + test->name() + "_" +
             std::to_string(getpid()));
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TokenizerFolder() { std::filesystem::remove_all(path_); }
  TokenizerFolder(const TokenizerFolder&) = delete;
  TokenizerFolder& operator=(const TokenizerFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }
  void write_json(const std::string& name, const Json& json) const { write(name, json.dump()); }

 private:
  std::filesystem::path path_;
};

inline Json added_token(int id, const std::string& content) {
  return Json::object().set("id", id).set("content", content).set("special", true);
}

/// The file that `char_tokenizer()` of the peers saves: <pad>, <eos>, printable ASCII.
inline Json character_tokenizer() {
  Json vocab = Json::object();
  vocab.set("<pad>", 0).set("<eos>", 1);
  for (int c = 32; c < 127; ++c) vocab.set(std::string(1, static_cast<char>(c)), c - 30);
  Json pre = Json::object();
  pre.set("type", "Split").set("behavior", "Isolated").set("invert", false);
  pre.set("pattern", Json::object().set("Regex", "."));
  Json model = Json::object();
  model.set("type", "WordLevel").set("vocab", vocab).set("unk_token", "<pad>");
  Json file = Json::object();
  file.set("version", "1.0").set("normalizer", Json()).set("pre_tokenizer", pre);
  file.set("added_tokens", Json(Json::Array{added_token(0, "<pad>"), added_token(1, "<eos>")}));
  file.set("decoder", Json::object().set("type", "Fuse")).set("model", model);
  return file;
}

inline Json character_tokenizer_config() {
  return Json::object().set("eos_token", "<eos>").set("pad_token", "<pad>");
}

}  // namespace primerl::testing
