// Conversations: the prompt of a task, and the ids between two answers.
#include <algorithm>

#include "actors/rollout/rollout.h"

namespace primerl {

Result<std::vector<int32_t>> Rollout::prompt_of(const Task& task, Group& group) {
  group.messages = task.messages;
  if (task.messages.empty() && has_user_prompts_)
    group.messages.push_back(chat_message("user", task.prompt));
  if (group.messages.empty()) return encode_start(*tokenizer_, task.prompt);
  if (group.prompt.empty()) group.prompt = primerl::text_of(group.messages.back());
  group.tools = task.tools;
  if (!chat_->ok()) return Error(chat_->error());
  RETURN_IF_ERROR(check_messages(group.messages));
  ASSIGN_OR_RETURN(const auto tools, tools_from_text(group.tools));
  return (*chat_)->prompt(group.messages, tools ? &*tools : nullptr);
}

Result<std::vector<int32_t>> Rollout::next_prompt(MemberId member_id,
                                                  const Observation& observation) {
  const Group& group = groups_.at(member_id.ordinal);
  if (group.messages.empty()) return tokenizer_->encode_text(observation.text);
  Member& member = member_at(member_id);
  std::vector<ChatMessage> added = observation.messages;
  if (added.empty()) added.push_back(chat_message("user", observation.text));
  RETURN_IF_ERROR(check_messages(added));
  std::vector<ChatMessage> history = group.messages;
  history.insert(history.end(), member.said.begin(), member.said.end() - 1);
  if (history.size() + added.size() >= kChatMessagesMax)
    return error(Code::kExhausted, "the conversation has more than {} messages", kChatMessagesMax);
  const auto& tokens = member.trajectory.tokens;
  size_t begin = tokens.size();  // of the last turn's sampled tokens
  while (begin > 0 && member.trajectory.sampled[begin - 1] == 1) --begin;
  ASSIGN_OR_RETURN(const auto tools, tools_from_text(group.tools));
  auto ids = (*chat_)->continuation(history, tools ? &*tools : nullptr, member.said.back(), added,
                                    std::span(tokens).subspan(begin));
  if (ids.ok()) member.said.insert(member.said.end(), added.begin(), added.end());
  return ids;
}

}  // namespace primerl
