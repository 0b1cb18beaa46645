/// fuzz/gateway_body_fuzz.h over its corpus, every truncation and seeded mutations of it.
#include "fuzz/gateway_body_fuzz.h"

#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "tests/base/fuzz_corpus.h"

namespace primerl {
namespace {

constexpr int kMutationsOfEach = 300;

TEST(GatewayBodyFuzz, SurvivesItsCorpusAndEveryTruncation) {
  const auto inputs = fuzz_corpus("gateway_body");
  EXPECT_GE(inputs.size(), 8U);
  for (const auto& [name, input] : inputs) {
    SCOPED_TRACE(name);
    for (size_t size = 0; size < input.size(); size += size < 512 ? 1 : 7)
      (void)fuzz_gateway_body(std::string_view(input).substr(0, size));
    EXPECT_EQ(fuzz_gateway_body(input) > 0, !name.starts_with("wrong"));
  }
}

TEST(GatewayBodyFuzz, SurvivesMutations) {
  const std::vector<std::string> words = {"\"",
                                          "{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "0",
                                          "-1",
                                          "1e99",
                                          "null",
                                          "true",
                                          "\"n\":128",
                                          "\\u0000",
                                          "99999999999999999999",
                                          "\xff",
                                          "\"logprobs\":21,"};
  uint64_t seed = 0;
  for (const auto& [name, input] : fuzz_corpus("gateway_body"))
    for (int i = 0; i < kMutationsOfEach; ++i) {
      RandomStream random(++seed);
      std::string bytes = input;
      for (uint64_t edits = random.below(4) + 1; edits > 0 && !bytes.empty(); --edits) {
        const size_t at = random.below(bytes.size());
        const uint64_t kind = random.below(3);
        if (kind == 0) bytes[at] = static_cast<char>(random.below(256));
        if (kind == 1) bytes.insert(at, words[random.below(words.size())]);
        if (kind == 2) bytes.erase(at, random.below(12) + 1);
      }
      (void)fuzz_gateway_body(bytes);
    }
}

}  // namespace
}  // namespace primerl
