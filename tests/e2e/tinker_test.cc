// The real SDK of Tinker trains a tenant of a run: the loss falls, samples come from snapshots,
// saved weights load, and no key is in a file.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdio>

#include "tests/cli/program.h"
#include "tests/e2e/run_files.h"
#include "tests/e2e/workers.h"

namespace primerl {
namespace {

using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

namespace fs = std::filesystem;

constexpr std::string_view kKey = "tml-0123456789abcdef";

fs::path python_of_clients() {
  return fs::path(PRIMERL_PYTHON).parent_path().parent_path() / "tinker/bin/python";
}

struct TinkerRun : ::testing::Test {
  void SetUp() override {
    if (!fs::exists(python_of_clients()))
      GTEST_SKIP() << "no package 'tinker': `scripts/setup.sh --tests` installs it";
    std::string text = *read_text_file(source_path("examples/tinker/graph.toml"));
    const std::string model = "\"../reverse_text/model\"";
    text.replace(text.find(model), model.size(),
                 "\"" + source_path("examples/reverse_text/model") + "\"");
    text += "\n[resource.tinker]\nlisten = \"127.0.0.1:0\"\nkeys_file = \"keys\"\n";
    write_text(scratch.path() / "graph.toml", text);
    write_text(scratch.path() / "keys", fmt::format("{} alice\n", kKey));
    run = std::make_unique<Program>(
        std::vector<std::string>{"primerl-graph", "run", (scratch.path() / "graph.toml").string(),
                                 "--out", folder.string()});
  }
  /// The address that the logs name; empty if there is none in time.
  std::string url() const {
    std::string found;
    (void)wait_until([&] {
      if (!fs::exists(folder / "logs")) return false;
      for (const auto& entry : fs::recursive_directory_iterator(folder / "logs")) {
        const auto text = read_text_file(entry.path());
        const std::string mark = "listens on ";
        const size_t at = text.ok() ? text->find(mark) : std::string::npos;
        if (at == std::string::npos) continue;
        const size_t begin = at + mark.size();
        found = text->substr(begin, text->find_first_of(" \"\n", begin) - begin);
      }
      return !found.empty();
    });
    return found;
  }
  /// What tests/e2e/tinker_client.py says.
  Json client(std::string_view what, std::string_view key = kKey) const {
    const fs::path said = scratch.path() / "said.json";
    const std::string command =
        fmt::format("'{}' '{}' {} {} {} > '{}'", python_of_clients().string(),
                    source_path("tests/e2e/tinker_client.py"), url(), key, what, said.string());
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return json_file(said);
  }
  std::vector<double> numbers(const Json& json, std::string_view key) const {
    std::vector<double> found;
    const Json* const list = json.find(key);
    if (list == nullptr || !list->is_array()) return found;
    for (const Json& each : list->as_array()) found.push_back(each.as_double());
    return found;
  }

  const ScratchFolder scratch;
  const fs::path folder = scratch.path() / "run";
  std::unique_ptr<Program> run;
};

TEST_F(TinkerRun, AnUnchangedClientTrainsSamplesSavesAndLoads) {
  const Json seen = client("train");
  const auto losses = numbers(seen, "losses");
  ASSERT_EQ(losses.size(), 12U);
  EXPECT_LT(losses.back(), 0.7 * losses.front());
  EXPECT_EQ(seen.get_int("rank").value(), 8);
  EXPECT_THAT(numbers(seen, "samples"), Each(Gt(0)));
  EXPECT_TRUE(seen.get_bool("same").value()) << "a snapshot does not change";
  EXPECT_EQ(seen.get_int("prompt_logprobs").value(), 5);
  EXPECT_EQ(seen.find("loss_after_load")->as_double(), seen.find("loss_after_save")->as_double())
      << "the saved weights are loaded to the bit";
  EXPECT_EQ(numbers(seen, "rewards").size(), 3U);
  ::kill(run->pid(), SIGINT);
  EXPECT_EQ(run->wait().code, 130);
  std::vector<std::string> with_key;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const auto content = read_text_file(entry.path());
    if (content.ok() && content->find(kKey) != std::string::npos)
      with_key.push_back(entry.path().string());
  }
  EXPECT_THAT(with_key, IsEmpty());
}

TEST_F(TinkerRun, AnotherRankIsAnErrorThatNamesTheValidOne) {
  EXPECT_THAT(client("refused").get_string("error").value(), HasSubstr("send rank 8"));
}

}  // namespace
}  // namespace primerl
