#include "actors/data/example_tokens.h"

#include "actors/common/tenant_chat.h"
#include "graph/base/counted.h"

namespace primerl {
namespace {

/// `is_said`: the policy said the text, so it gets an end token and, unless its weight is 0, is
/// under the mask.
Status append(Trajectory& trajectory, const std::string& text, bool is_said, float weight,
              const Tokenizer& tokenizer) {
  ASSIGN_OR_RETURN(auto tokens, tokenizer.encode_text(text));
  if (is_said && tokenizer.turn_end_id() >= 0) tokens.push_back(tokenizer.turn_end_id());
  trajectory.tokens.insert(trajectory.tokens.end(), tokens.begin(), tokens.end());
  trajectory.sampled.resize(trajectory.tokens.size(), is_said && weight > 0 ? 1 : 0);
  trajectory.weights.resize(trajectory.tokens.size(), weight);
  return ok();
}

/// No weights say that all are 1.
void drop_equal_weights(Trajectory& trajectory) {
  for (size_t i = 0; i < trajectory.weights.size(); ++i)
    if (trajectory.sampled[i] != 0 && trajectory.weights[i] != 1) return;
  trajectory.weights.clear();
}

/// A conversation: what trains follows from the chat template.
Status fill_chat(Trajectory& trajectory, const DataExample& example,
                 const Result<chat::ChatFormat>& chat) {
  if (!chat.ok()) return Error(chat.error());
  ASSIGN_OR_RETURN(const auto tools, tools_from_text(example.tools));
  ASSIGN_OR_RETURN(auto row, chat->supervised(example.messages, tools ? &*tools : nullptr));
  if (row.num_unmarked > 0)
    return error(Code::kInvalid, "the template does not mark the beginning or end of {}",
                 counted(static_cast<uint64_t>(row.num_unmarked), "answer"))
        .note("a template with {% generation %} tags says what trains");
  trajectory.tokens = std::move(row.ids);
  trajectory.sampled = std::move(row.trains);
  if (!example.weights.empty()) {
    trajectory.weights.assign(trajectory.tokens.size(), 1);
    for (size_t i = 0; i < trajectory.tokens.size(); ++i) {
      if (row.messages[i] < 0) continue;
      trajectory.weights[i] = example.weights[static_cast<size_t>(row.messages[i])];
      if (trajectory.weights[i] == 0) trajectory.sampled[i] = 0;
    }
    drop_equal_weights(trajectory);
  }
  for (const auto& message : example.messages)
    trajectory.num_turns += message.role == "assistant" ? 1 : 0;
  return ok();
}

}  // namespace

Status fill_example(Trajectory& trajectory, const DataExample& example, const Tokenizer& tokenizer,
                    const Result<chat::ChatFormat>& chat) {
  if (!example.messages.empty()) return fill_chat(trajectory, example, chat);
  trajectory.tokens = tokenizer.prefix_ids();
  RETURN_IF_ERROR(append(trajectory, example.prompt, false, 1, tokenizer));
  for (const auto& turn : example.turns) {
    RETURN_IF_ERROR(append(trajectory, turn.completion, true, turn.weight, tokenizer));
    if (!turn.observation.empty())
      RETURN_IF_ERROR(append(trajectory, turn.observation, false, 1, tokenizer));
    ++trajectory.num_turns;
  }
  drop_equal_weights(trajectory);
  return ok();
}

int64_t tokens_bound(std::string_view text) {
  // A token has at least a byte of the normalized text. A space may become U+2581, three bytes.
  // NFKC makes at most 33 bytes of 3, or 18 of 2.
  constexpr int64_t kSpaceBytes = 3, kOtherBytes = 12;
  int64_t bound = kSpaceBytes;  // some tokenizers put a space before a text
  for (const char c : text)
    bound += static_cast<unsigned char>(c) >= 0x80 ? kOtherBytes : (c == ' ' ? kSpaceBytes : 1);
  return bound;
}

}  // namespace primerl
