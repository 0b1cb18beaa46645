#include "actors/env/environments/letters.h"

#include <algorithm>
#include <bitset>

namespace primerl {

Status validate(const LetterOptions& options) {
  if (options.letters.empty())
    return error(Code::kInvalid, "'letters' is empty").note("give the letters of the words");
  std::bitset<128> seen;
  for (const char letter : options.letters) {
    const auto code = static_cast<unsigned char>(letter);
    if (code < 0x20 || code > 0x7E)
      return error(Code::kInvalid, "'letters' holds byte 0x{:02X}", code)
          .note("letters are printable ASCII");
    if (seen[code]) return error(Code::kInvalid, "'letters' has '{}' twice", letter);
    seen.set(code);
  }
  if (options.length_min < 1 || options.length_max < options.length_min ||
      options.length_max > kWordLengthMax)
    return error(Code::kInvalid,
                 "'length_min' {} and 'length_max' {} are not a range of word lengths",
                 options.length_min, options.length_max)
        .note(fmt::format("1 <= length_min <= length_max <= {}", kWordLengthMax));
  return ok();
}

std::string random_word(const LetterOptions& options, RandomStream& random) {
  const auto spread = static_cast<uint64_t>(options.length_max - options.length_min) + 1;
  const auto length = static_cast<size_t>(options.length_min) + random.below(spread);
  std::string word(length, ' ');
  for (char& letter : word) letter = options.letters[random.below(options.letters.size())];
  return word;
}

double equal_share(std::string_view completion, std::string_view answer) {
  const size_t longer = std::max(completion.size(), answer.size());
  if (longer == 0) return 1;
  const size_t shorter = std::min(completion.size(), answer.size());
  size_t num_equal = 0;
  for (size_t i = 0; i < shorter; ++i) num_equal += completion[i] == answer[i] ? 1 : 0;
  return static_cast<double>(num_equal) / static_cast<double>(longer);
}

}  // namespace primerl
