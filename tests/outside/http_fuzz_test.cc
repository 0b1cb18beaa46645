/// fuzz/http_fuzz.h over its corpus, every truncation and seeded mutations of it.
#include "fuzz/http_fuzz.h"

#include <gtest/gtest.h>

#include "graph/base/random.h"
#include "tests/base/fuzz_corpus.h"

namespace primerl {
namespace {

constexpr int kMutationsOfEach = 400;

TEST(HttpFuzz, SurvivesItsCorpusAndEveryTruncation) {
  const auto inputs = fuzz_corpus("http");
  EXPECT_GE(inputs.size(), 8u);
  for (const auto& [name, input] : inputs) {
    SCOPED_TRACE(name);
    for (size_t size = 0; size < input.size(); ++size)
      (void)fuzz_http(std::string_view(input).substr(0, size));
    EXPECT_EQ(fuzz_http(input).state == HttpReader::State::kDone, name.starts_with("done"));
  }
}

TEST(HttpFuzz, SurvivesMutations) {
  const std::vector<std::string> words = {"\r\n",     "\r\n\r\n",           ":",    " ",  "0",
                                          "ffffffff", "Content-Length: 3",  "\xff", "\t", "chunked",
                                          "HTTP/1.1", "Host: localhost\r\n"};
  uint64_t seed = 0;
  for (const auto& [name, input] : fuzz_corpus("http")) {
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
      (void)fuzz_http(bytes);
    }
  }
}

}  // namespace
}  // namespace primerl
