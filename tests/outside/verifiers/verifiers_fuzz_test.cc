/// fuzz/verifiers_fuzz.h over its corpus, every truncation and seeded mutations of it.
#include "fuzz/verifiers_fuzz.h"

#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "tests/base/fuzz_corpus.h"

namespace primerl {
namespace {

constexpr int kServerMutationsOfEach = 150;

TEST(VerifiersFuzz, SurvivesItsCorpusAndTruncations) {
  const auto inputs = fuzz_corpus("verifiers");
  EXPECT_GE(inputs.size(), 6U);
  for (const auto& [name, input] : inputs) {
    SCOPED_TRACE(name);
    EXPECT_EQ(fuzz_verifiers(input).num_answers > 0, name.starts_with("answer"));
    for (size_t size = 0; size < input.size(); size += input.size() / 200 + 1)
      (void)fuzz_verifiers(std::string_view(input).substr(0, size));
  }
}

TEST(VerifiersFuzz, SurvivesMutations) {
  const std::vector<std::string> words = {"\x80",
                                          "\x90",
                                          "\xc0",
                                          "\xff",
                                          "\xa5nodes",
                                          "\xa6parent",
                                          "\xdd\xff\xff\xff\xff",
                                          "\xc6\xff\xff\xff\xff",
                                          "\xcb",
                                          "\xa6__nd__\xc3",
                                          "\x81\xc0",
                                          "\xc1"};
  uint64_t seed = 0;
  for (const auto& [name, input] : fuzz_corpus("verifiers")) {
    for (int i = 0; i < kServerMutationsOfEach; ++i) {
      RandomStream random(++seed);
      std::string bytes = input;
      for (uint64_t edits = random.below(4) + 1; edits > 0 && bytes.size() > 3; --edits) {
        const size_t at = random.below(bytes.size());
        const uint64_t kind = random.below(3);
        if (kind == 0) bytes[at] = static_cast<char>(random.below(256));
        // The size stays, so that the lengths of the frames stay right.
        const std::string& word = words[random.below(words.size())];
        if (kind == 1) bytes.replace(at, std::min(word.size(), bytes.size() - at), word);
        if (kind == 2) bytes.erase(at, random.below(12) + 1);
      }
      (void)fuzz_verifiers(bytes);
    }
  }
}

}  // namespace
}  // namespace primerl
