/// fuzz/live_connection_fuzz.cc over its corpus, every truncation and seeded mutations of it.
#include "fuzz/live_connection_fuzz.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "graph/base/random.h"

namespace primerl {
namespace {

using Bytes = std::vector<std::byte>;

std::map<std::string, Bytes> corpus() {
  std::map<std::string, Bytes> all;
  for (const auto& entry :
       std::filesystem::directory_iterator(PRIMERL_SOURCE_DIR "/fuzz/corpus/live_connection")) {
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(content));
    all[entry.path().filename().string()] = Bytes(bytes.begin(), bytes.end());
  }
  return all;
}

TEST(LiveConnectionFuzz, SurvivesItsCorpusAndEveryTruncation) {
  const auto inputs = corpus();
  EXPECT_GE(inputs.size(), 10u);
  for (const auto& [name, input] : inputs) {
    SCOPED_TRACE(name);
    for (size_t size = 0; size <= input.size(); ++size)
      (void)fuzz_live_connection(std::span(input).first(size));
    EXPECT_EQ(fuzz_live_connection(input), name.starts_with("stranger"))
        << "by the peer's connection";
  }
}

TEST(LiveConnectionFuzz, FramesOfUnknownSendersAreCountedByReason) {
  const auto inputs = corpus();
  LiveConnection live;
  EXPECT_TRUE(live.play(inputs.at("stranger_every_kind")));
  const ConnectionStatus status = live.status();
  EXPECT_GT(status.num_refused(FrameRefusal::kNotGreeted), 0u);
  EXPECT_GT(status.num_refused(FrameRefusal::kUnknownPeer), 0u);
  EXPECT_GT(status.num_refused(FrameRefusal::kCheck), 0u);
  EXPECT_EQ(live.num_delivered(), live.num_honest());
}

TEST(LiveConnectionFuzz, SurvivesSeededMutations) {
  const auto inputs = corpus();
  ASSERT_FALSE(inputs.empty());
  std::vector<Bytes> all;
  for (const auto& [name, input] : inputs) all.push_back(input);
  uint64_t num_clean = 0;
  constexpr uint64_t kSeeds = 3000;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomStream random(seed);
    Bytes input = all[random.below(all.size())];
    for (uint64_t i = 0; i <= random.below(8) && !input.empty(); ++i) {
      const size_t at = random.below(input.size());
      if (random.below(3) == 0)
        input.erase(input.begin() + static_cast<std::ptrdiff_t>(at));
      else
        input[at] = static_cast<std::byte>(random.below(256));
    }
    num_clean += fuzz_live_connection(input) ? 1 : 0;
  }
  // Otherwise one of the two properties was hardly tested.
  EXPECT_GT(num_clean, kSeeds / 20);
  EXPECT_LT(num_clean, kSeeds - kSeeds / 20);
}

}  // namespace
}  // namespace primerl
