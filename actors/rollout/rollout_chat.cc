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

Result<Rollout::NextPrompt> Rollout::whole_prompt(const Group& group, const Member& member,
                                                  const std::vector<ChatMessage>& added,
                                                  const Json* tools) const {
  std::vector<ChatMessage> all = group.messages;
  all.insert(all.end(), member.said.begin(), member.said.end());
  all.insert(all.end(), added.begin(), added.end());
  NextPrompt next;
  ASSIGN_OR_RETURN(next.tokens, (*chat_)->prompt(all, tools));
  const auto sample = member.trajectory.last_sample();
  next.begins_sample = next.tokens.size() <= sample.size() ||
                       !std::equal(sample.begin(), sample.end(), next.tokens.begin());
  if (!next.begins_sample)
    next.tokens.erase(next.tokens.begin(),
                      next.tokens.begin() + static_cast<std::ptrdiff_t>(sample.size()));
  return next;
}

bool Rollout::fits(uint64_t ordinal, const Trajectory& trajectory, const NextPrompt& next) const {
  const auto added = static_cast<int64_t>(next.tokens.size());
  const int64_t seq_len = tenant_of(ordinal).seq_len;
  if (!next.begins_sample)
    return static_cast<int64_t>(trajectory.last_sample().size()) + added < seq_len;
  return added < seq_len && may_begin_sample(trajectory.tokens.size(), seq_len);
}

void Rollout::append_prompt(Member& member, const NextPrompt& next) {
  Trajectory& trajectory = member.trajectory;
  if (next.begins_sample) {
    trajectory.sample_begins.push_back(static_cast<int32_t>(trajectory.tokens.size()));
    member.known = {};  // the engine's session has another prompt
    services().count("samples_begun", 1);
  }
  trajectory.tokens.insert(trajectory.tokens.end(), next.tokens.begin(), next.tokens.end());
  trajectory.sampled.resize(trajectory.tokens.size(), 0);
  trajectory.logprobs.resize(trajectory.tokens.size(), 0.0F);
}

Result<Rollout::NextPrompt> Rollout::next_prompt(MemberId member_id,
                                                 const Observation& observation) {
  const Group& group = groups_.at(member_id.ordinal);
  if (group.messages.empty()) {
    ASSIGN_OR_RETURN(auto text, tokenizer_->encode_text(observation.text));
    return NextPrompt{std::move(text), false};
  }
  Member& member = member_at(member_id);
  std::vector<ChatMessage> added = observation.messages;
  if (added.empty()) added.push_back(chat_message("user", observation.text));
  RETURN_IF_ERROR(check_messages(added));
  if (group.messages.size() + member.said.size() + added.size() > kChatMessagesMax)
    return error(Code::kExhausted, "the conversation has more than {} messages", kChatMessagesMax);
  ASSIGN_OR_RETURN(const auto tools, tools_from_text(group.tools));
  const Json* const given_tools = tools ? &*tools : nullptr;
  NextPrompt next;
  if (tenant().chat.history == "template") {
    ASSIGN_OR_RETURN(next, whole_prompt(group, member, added, given_tools));
  } else {
    std::vector<ChatMessage> history = group.messages;
    history.insert(history.end(), member.said.begin(), member.said.end() - 1);
    const auto& tokens = member.trajectory.tokens;
    size_t begin = tokens.size();  // of the last turn's sampled tokens
    while (begin > 0 && member.trajectory.sampled[begin - 1] == 1) --begin;
    ASSIGN_OR_RETURN(next.tokens, (*chat_)->continuation(history, given_tools, member.said.back(),
                                                         added, std::span(tokens).subspan(begin)));
  }
  member.said.insert(member.said.end(), added.begin(), added.end());
  return next;
}

}  // namespace primerl
