/// The inputs of a fuzz target, fuzz/corpus/NAME, for the tests that run the target on them.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

namespace primerl {

/// The content of each file, by its name.
inline std::map<std::string, std::string> fuzz_corpus(const std::string& target) {
  const auto folder = std::filesystem::path(PRIMERL_SOURCE_DIR) / "fuzz/corpus" / target;
  std::map<std::string, std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path(), std::ios::binary);
    EXPECT_TRUE(file.is_open()) << entry.path();
    all[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
  }
  return all;
}

}  // namespace primerl
