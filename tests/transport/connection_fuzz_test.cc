/// fuzz/connection_fuzz.cc over its corpus, every truncation and seeded mutations of it.
#include "fuzz/connection_fuzz.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "graph/base/random.h"

namespace primerl {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(PRIMERL_SOURCE_DIR "/fuzz/corpus/connection"))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<Bytes> all;
  for (const auto& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    const auto bytes = std::as_bytes(std::span(content));
    all.emplace_back(bytes.begin(), bytes.end());
  }
  return all;
}

TEST(ConnectionFuzz, SurvivesItsCorpusAndEveryTruncation) {
  const auto inputs = corpus();
  EXPECT_GE(inputs.size(), 10u);
  for (const Bytes& input : inputs)
    for (size_t size = 0; size <= input.size(); ++size)
      fuzz_connection(std::span(input).first(size));
}

TEST(ConnectionFuzz, DeliversTheWholesomePartOfItsCorpus) {
  // Otherwise mutations would only test the first refusal.
  const auto num_delivered = [](const std::string& name) {
    std::ifstream file(PRIMERL_SOURCE_DIR "/fuzz/corpus/connection/" + name, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(file)), {});
    return fuzz_frames(std::as_bytes(std::span(content)));
  };
  EXPECT_EQ(num_delivered("frames_mixed"), 4u);
  EXPECT_EQ(num_delivered("frames_bulk_first"), 1u);
  EXPECT_EQ(num_delivered("chunk_gap"), 0u);
}

TEST(ConnectionFuzz, SurvivesSeededMutations) {
  const auto inputs = corpus();
  ASSERT_FALSE(inputs.empty());
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RandomStream random(seed);
    Bytes input = inputs[random.below(inputs.size())];
    for (uint64_t i = 0; i <= random.below(6) && !input.empty(); ++i) {
      const size_t at = random.below(input.size());
      switch (random.below(4)) {
        case 0:
          input[at] ^= static_cast<std::byte>(1 << random.below(8));
          break;
        case 1:
          input[at] = static_cast<std::byte>(random.below(256));
          break;
        case 2:
          input.erase(input.begin() + static_cast<std::ptrdiff_t>(at));
          break;
        default:
          for (size_t byte = at; byte < std::min(at + 4, input.size()); ++byte)
            input[byte] = std::byte{0xff};
      }
    }
    fuzz_connection(input);
  }
}

}  // namespace
}  // namespace primerl
