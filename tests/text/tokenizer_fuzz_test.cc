/// Runs fuzz/tokenizer_fuzz.cc on its corpus and on seeded mutations of it: nothing may crash.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/base/random.h"
#include "tests/base/fuzz_corpus.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace primerl {
namespace {

constexpr int kMutationsOfEach = 400;

std::vector<std::string> corpus() {
  std::vector<std::string> inputs;
  for (auto& [name, input] : fuzz_corpus("tokenizer")) inputs.push_back(std::move(input));
  return inputs;
}

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

/// Changes a few bytes, numbers, words or ranges.
std::string mutated(std::string input, const std::string& other, RandomStream& random) {
  static const std::vector<std::string> kWords = {
      "null",          "[]",          "{}",         "-1",
      "1e99",          "1048576",     "\"\"",       "\"Sequence\"",
      "\"ByteLevel\"", "\"BPE\"",     "true",       "18446744073709551616",
      "\\ud800",       "\"(?:a*)*\"", "\"(\"",      "\"[\"",
      "\"\\\\\"",      "\xFF",        "\"\\\\K\"",  "\"(?=a\\\\K)\"",
      "\"(?<=b)|\"",   "\"(?R)?\"",   "\"(?C1)a\"", "\"\\\\C\""};
  const auto place = [&] { return input.empty() ? size_t{0} : random.below(input.size()); };
  for (uint64_t left = 1 + random.below(4); left > 0; --left) {
    const size_t at = place();
    switch (random.below(6)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        input.erase(at, 1 + random.below(20));
        break;
      case 2:
        input.insert(at, kWords[random.below(kWords.size())]);
        break;
      case 3: {
        const size_t from = place();
        input.insert(at, input.substr(from, 1 + random.below(40)));
        break;
      }
      case 4: {
        // A whole value: from this colon to the next comma.
        const size_t begin = input.find(':', at), end = input.find_first_of(",}]", begin);
        if (begin != std::string::npos && end != std::string::npos)
          input.replace(begin + 1, end - begin - 1, kWords[random.below(kWords.size())]);
        break;
      }
      default:
        if (!other.empty()) input.insert(at, other.substr(random.below(other.size()), 30));
    }
  }
  return input;
}

TEST(TokenizerFuzz, SurvivesItsCorpus) {
  const auto inputs = corpus();
  ASSERT_GE(inputs.size(), 8u);
  for (const std::string& input : inputs) run(input);
}

TEST(TokenizerFuzz, SurvivesSeededMutations) {
  const auto inputs = corpus();
  for (size_t i = 0; i < inputs.size(); ++i)
    for (int k = 0; k < kMutationsOfEach; ++k) {
      RandomStream random(mix(i, static_cast<uint64_t>(k)));
      run(mutated(inputs[i], inputs[random.below(inputs.size())], random));
    }
}

}  // namespace
}  // namespace primerl
