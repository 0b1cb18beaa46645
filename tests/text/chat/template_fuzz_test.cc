/// Runs fuzz/template_fuzz.cc on its corpus, on real templates and on seeded mutations of both:
/// nothing may crash.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/base/random.h"
#include "tests/base/fuzz_corpus.h"
#include "tests/text/chat/goldens.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace primerl::chat {
namespace {

constexpr int kMutationsOfEach = 60;

void run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::string mutated(std::string input, const std::string& other, RandomStream& random) {
  static const std::vector<std::string> kWords = {"{% for x in y %}",
                                                  "{% endfor %}",
                                                  "{{ ",
                                                  " }}",
                                                  "{% if x %}",
                                                  "{% endif %}",
                                                  "[::-1]",
                                                  " | tojson",
                                                  "\xff",
                                                  "é",
                                                  "namespace()",
                                                  "{% break %}",
                                                  "(((((((((",
                                                  "range(99)",
                                                  "-%}",
                                                  "{%- ",
                                                  ".split('')",
                                                  " * 99999",
                                                  "loop.",
                                                  "| map('map', 'upper')",
                                                  "not ",
                                                  "{% set ns.x = [ns.x, ns.x] %}"};
  for (uint64_t i = random.below(4) + 1; i > 0 && !input.empty(); --i) {
    const size_t at = random.below(input.size());
    switch (random.below(5)) {
      case 0:
        input[at] = static_cast<char>(random.below(256));
        break;
      case 1:
        input.insert(at, kWords[random.below(kWords.size())]);
        break;
      case 2:
        input.erase(at, random.below(20) + 1);
        break;
      case 3:
        input.insert(at, other.substr(random.below(other.size()), random.below(60)));
        break;
      default:
        input.insert(at, input.substr(random.below(input.size()), random.below(40)));
    }
  }
  return input;
}

TEST(TemplateFuzz, SurvivesItsCorpusAndMutations) {
  std::vector<std::string> inputs;
  for (auto& [name, input] : fuzz_corpus("template")) inputs.push_back(std::move(input));
  ASSERT_GE(inputs.size(), 3U);
  for (const auto& each : read_goldens().templates)
    if (each.source.size() < 5000) inputs.push_back(each.source);
  RandomStream random(7);
  for (const auto& input : inputs) {
    run(input);
    for (int i = 0; i < kMutationsOfEach; ++i)
      run(mutated(input, inputs[random.below(inputs.size())], random));
  }
}

}  // namespace
}  // namespace primerl::chat
