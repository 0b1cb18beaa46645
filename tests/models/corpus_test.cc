/// Configs of real models and adapters (tests/models/corpus/): each loads, or is refused for the
/// one reason that is right. A line has the source of the config: a file of a public repository at
/// a commit, or published facts that were written from memory and not compared again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "graph/base/json.h"
#include "kernels/models/config.h"
#include "kernels/weights/peft_folder.h"
#include "tests/store/scratch_folder.h"

namespace primerl {
namespace {

using ::testing::HasSubstr;

std::vector<Json> lines_of(const std::string& name) {
  std::ifstream file(std::string(PRIMERL_SOURCE_DIR) + "/tests/models/corpus/" + name);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(*parse_json(line, name));
  return lines;
}

/// An empty verdict: it loads.
void expect_verdict(const Json& line, const std::string& fault, const std::string& name) {
  const std::string& verdict = line.find("verdict")->as_string();
  if (verdict.empty())
    EXPECT_EQ(fault, "") << name;
  else
    EXPECT_THAT(fault, HasSubstr(verdict)) << name;
}

TEST(Corpus, ConfigsOfModelsLoadOrAreRefusedForTheRightReason) {
  const auto lines = lines_of("configs.jsonl");
  ASSERT_GE(lines.size(), 60U);
  size_t num_loaded = 0;
  for (const Json& line : lines) {
    const std::string& name = line.find("model")->as_string();
    const auto folder = new_scratch_folder();
    std::ofstream(folder / "config.json") << line.find("config")->dump();
    const auto config = read_model_config(folder);
    expect_verdict(line, config.ok() ? "" : config.error().text(), name);
    if (!config.ok()) continue;
    ++num_loaded;
    std::vector<std::string> unknown;
    for (const Json& key : line.find("unknown")->as_array()) unknown.push_back(key.as_string());
    EXPECT_EQ(config->unknown_keys, unknown) << name;
    const Status supported = check_is_supported(*config);
    EXPECT_TRUE(supported.ok()) << name << ": " << supported.error().text();
  }
  EXPECT_GE(num_loaded, 35U);
}

TEST(Corpus, ConfigsOfAdaptersLoadOrAreRefusedForTheRightReason) {
  const auto lines = lines_of("adapters.jsonl");
  ASSERT_GE(lines.size(), 22U);
  for (const Json& line : lines) {
    const auto folder = new_scratch_folder();
    std::ofstream(folder / "adapter_config.json") << line.find("config")->dump();
    const auto read = read_peft_config(folder);
    expect_verdict(line, read.ok() ? "" : read.error().text(), line.find("adapter")->as_string());
  }
}

}  // namespace
}  // namespace primerl
