/// The tokens of a supervised example, as training uses them. Pure functions; data.cc and `check`
/// use the same ones.
#pragma once

#include <string_view>

#include "actors/data/examples.h"
#include "actors/messages/rollout.h"
#include "kernels/text/chat/format.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

/// Fills in tokens, mask and num_turns. `chat` is the chat format, or why there is none: it counts
/// only if the example has messages.
Status fill_example(Trajectory& trajectory, const DataExample& example, const Tokenizer& tokenizer,
                    const Result<chat::ChatFormat>& chat);

/// An upper bound of the tokens of a text, found without encoding it.
int64_t tokens_bound(std::string_view text);

}  // namespace primerl
