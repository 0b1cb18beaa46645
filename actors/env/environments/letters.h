/// Code that the letter tasks share: random words over an alphabet, and a dense reward.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/base/random.h"
#include "graph/base/result.h"

namespace primerl {

struct LetterOptions {
  std::string letters = "abcdefghijklmnop";  // printable ASCII, no letter twice
  int32_t length_min = 8;                    // letters of the shortest word
  int32_t length_max = 8;                    // letters of the longest word
};

inline constexpr int32_t kWordLengthMax = 4096;

/// Refuses letters or lengths from which no task can be made.
Status validate(const LetterOptions& options);

/// A random word: length and letters are uniform.
std::string random_word(const LetterOptions& options, RandomStream& random);

/// Share of positions (bytes) that are equal, over the longer of the two texts; 1 for two empty
/// texts.
double equal_share(std::string_view completion, std::string_view answer);

}  // namespace primerl
