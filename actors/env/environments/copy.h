/// Write a word again: the answer to `c:abcdefgh>` is `abcdefgh`. One turn. The reward is the share
/// of positions that are right, over the longer of the two texts: 1 only for the exact answer.
#pragma once

#include <memory>

#include "actors/env/environment.h"
#include "actors/env/environments/letters.h"

namespace primerl {

Result<std::unique_ptr<Environment>> make_copy(const LetterOptions& options);

}  // namespace primerl
