/// Write a word backwards: `r:abcdefgh>` wants `hgfedcba`. One turn; the reward is the share of
/// positions that are right, over the longer of the two texts: 1 only for the exact answer. For
/// lessons in finding faults, tasks from an ordinal on can have a wrong answer key.
#pragma once

#include <memory>

#include "actors/env/environment.h"
#include "actors/env/environments/letters.h"

namespace primerl {

struct ReverseTextOptions : LetterOptions {
  int64_t wrong_key_from =
      -1;  // ordinal of the first task judged by the word as it stands; -1: none
};

Result<std::unique_ptr<Environment>> make_reverse_text(const ReverseTextOptions& options);

}  // namespace primerl
