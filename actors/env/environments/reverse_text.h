/// Write a word backwards: the answer to `r:abcdefgh>` is `hgfedcba`. One turn. The reward is the
/// share of positions that are right, over the longer of the two texts: 1 only for the exact
/// answer. For exercises in finding faults, tasks from a given ordinal on can have a wrong answer
/// key.
#pragma once

#include <memory>

#include "actors/env/environment.h"
#include "actors/env/environments/letters.h"

namespace primerl {

struct ReverseTextOptions : LetterOptions {
  int64_t wrong_key_from = -1;  // first task that is judged with the unreversed word; -1: none
};

Result<std::unique_ptr<Environment>> make_reverse_text(const ReverseTextOptions& options);

}  // namespace primerl
