/// Runs fuzz/safetensors_fuzz.cc on its corpus, on every truncation and on seeded mutations of it.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/base/random.h"
#include "tests/base/fuzz_corpus.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace primerl {
namespace {

constexpr int kMutationsOfEach = 1000;

std::vector<std::string> corpus() {
  std::vector<std::string> inputs;
  for (auto& [name, input] : fuzz_corpus("safetensors")) inputs.push_back(std::move(input));
  return inputs;
}

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

/// Changes a byte, a range or a number; half of the time the header's length is corrected, so that
/// later checks are reached.
std::string mutated(std::string input, RandomStream& random) {
  static const std::vector<std::string> kWords = {"-1",
                                                  "0",
                                                  "1",
                                                  "8",
                                                  "1e3",
                                                  "18446744073709551615",
                                                  "9223372036854775808",
                                                  "[]",
                                                  "{}",
                                                  "null",
                                                  "\"F32\"",
                                                  "\"BF16\"",
                                                  "\"F4\"",
                                                  "\xFF",
                                                  "\"__metadata__\":",
                                                  ",",
                                                  "\\ud800"};
  const size_t old_size = input.size();
  for (uint64_t left = 1 + random.below(3); left > 0; --left) {
    const size_t at = input.empty() ? 0 : random.below(input.size());
    switch (random.below(4)) {
      case 0:
        if (!input.empty()) input[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        input.erase(at, 1 + random.below(6));
        break;
      case 2:
        input.insert(at, kWords[random.below(kWords.size())]);
        break;
      default:
        input.append(random.below(9), '\0');
    }
  }
  if (input.size() >= 8 && random.below(2) == 0) {
    const auto length = static_cast<unsigned char>(input[0]);
    input[0] = static_cast<char>(length + static_cast<unsigned char>(input.size() - old_size));
  }
  return input;
}

TEST(SafetensorsFuzz, TheCorpusAndEveryTruncationOfItAreHandled) {
  const auto inputs = corpus();
  ASSERT_GE(inputs.size(), 10U);
  for (const auto& input : inputs)
    for (size_t size = 0; size <= input.size(); ++size) run(input.substr(0, size));
}

TEST(SafetensorsFuzz, SeededMutationsOfTheCorpusAreHandled) {
  const auto inputs = corpus();
  RandomStream random(2026);
  for (const auto& input : inputs)
    for (int i = 0; i < kMutationsOfEach; ++i) run(mutated(input, random));
}

}  // namespace
}  // namespace primerl
