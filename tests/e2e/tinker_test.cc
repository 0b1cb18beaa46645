// The real SDK of Tinker trains a tenant of a run: the loss falls, samples come from snapshots,
// saved weights load, and no key is in a file.
#include <gmock/gmock.h>

#include <cctype>
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

/// The Python of an environment with the SDK: "tinker" has the newest one.
fs::path python_of_clients(std::string_view environment = "tinker") {
  return fs::path(PRIMERL_PYTHON).parent_path().parent_path() / environment / "bin/python";
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
  Json client(std::string_view what, std::string_view environment = "tinker") const {
    const fs::path said = scratch.path() / "said.json";
    const std::string command =
        fmt::format("'{}' '{}' {} {} {} > '{}'", python_of_clients(environment).string(),
                    source_path("tests/e2e/tinker_client.py"), url(), kKey, what, said.string());
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

TEST_F(TinkerRun, TheBaseModelStaysAndWeightsAreListedAndDeleted) {
  const Json seen = client("lists");
  EXPECT_TRUE(seen.get_bool("base_is_same").value()) << "training does not change it";
  EXPECT_TRUE(seen.get_bool("trained_is_other").value());
  EXPECT_EQ(seen.get_int("rank").value(), 8);
  EXPECT_EQ(seen.get_int("all").value(), 2);
  EXPECT_EQ(seen.get_string("run").value(), "session-1:train:0");
  EXPECT_EQ(seen.find("weights")->dump(), R"(["tinker://session-1:train:0/sampler_weights/listed",)"
                                          R"("tinker://session-1:train:0/weights/listed"])");
  EXPECT_EQ(seen.find("runs")->dump(), R"(["session-1:train:0"])");
  EXPECT_EQ(seen.find("session")->dump(), R"(["session-1:train:0"])");
  EXPECT_EQ(seen.find("left")->dump(), R"(["sampler_weights/listed"])");
  EXPECT_EQ(seen.find("stop_reasons")->dump(), R"(["stop"])") << seen.get_string("stopped").value();
}

struct TinkerRunOfSdk : TinkerRun, ::testing::WithParamInterface<const char*> {};

TEST_P(TinkerRunOfSdk, AnOlderVersionTrainsSamplesAndLists) {
  if (!fs::exists(python_of_clients(GetParam())))
    GTEST_SKIP() << "no " << GetParam() << ": `scripts/setup.sh --soak` installs it";
  const Json trained = client("train", GetParam());
  EXPECT_LT(numbers(trained, "losses").back(), 0.7 * numbers(trained, "losses").front());
  EXPECT_TRUE(trained.get_bool("same").value());
  const Json seen = client("lists", GetParam());
  EXPECT_TRUE(seen.get_bool("base_is_same").value());
  EXPECT_EQ(seen.find("left")->dump(), R"(["sampler_weights/listed"])");
  EXPECT_EQ(numbers(seen, "rewards").size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Sdks, TinkerRunOfSdk, ::testing::Values("tinker-0.25.0", "tinker-0.29.1"),
                         [](const auto& each) {
                           std::string name = each.param;
                           std::erase_if(name, [](char c) { return !std::isalnum(c); });
                           return name;
                         });

TEST_F(TinkerRun, AnotherRankIsAnErrorThatNamesTheValidOne) {
  EXPECT_THAT(client("refused").get_string("error").value(), HasSubstr("send rank 8"));
}

}  // namespace
}  // namespace primerl
