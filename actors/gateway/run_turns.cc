#include "actors/gateway/run_turns.h"

#include <algorithm>
#include <numeric>

#include "actors/messages/rollout.h"

namespace primerl {
namespace {

/// The longest of `sequences` whose tokens `prompt` begins with; the number of sequences if there
/// is none.
size_t extended_by(const std::vector<TokenPrefix>& sequences, const std::vector<int32_t>& prompt) {
  std::vector<size_t> by_length(sequences.size());
  std::iota(by_length.begin(), by_length.end(), size_t{0});
  std::ranges::stable_sort(by_length, {}, [&](size_t i) { return sequences[i].num_tokens; });
  size_t found = sequences.size();
  TokenPrefix read;
  for (const size_t i : by_length) {
    const TokenPrefix& end = sequences[i];
    if (std::cmp_greater(end.num_tokens, prompt.size())) break;
    read = read.extended(
        std::span(prompt).subspan(static_cast<size_t>(read.num_tokens),
                                  static_cast<size_t>(end.num_tokens - read.num_tokens)));
    if (read == end) found = i;
  }
  return found;
}

}  // namespace

bool RunTurns::is_closed(const MemberName& name) const {
  if (closed_by_name_.size() != closed_.size()) closed_by_name_ = {closed_.begin(), closed_.end()};
  return closed_by_name_.contains(name);
}

Status RunTurns::begin(const MemberName& name, int64_t tokens_max, int64_t turns_max) {
  if (is_closed(name))
    return error(Code::kCancelled, "the rollout {}.{}.{} has ended", name.ordinal, name.attempt,
                 name.member);
  const auto found = open_.find(name);
  const OpenRun known = found == open_.end() ? OpenRun() : found->second;
  if (known.num_turns + known.num_running >= turns_max)
    return error(Code::kInvalid,
                 "This model's maximum context length is reached: the rollout has {} turns already",
                 turns_max)
        .note("'turns_max' of the tenant");
  if (known.num_tokens + known.num_pending + tokens_max > kMemberTokensMax)
    return error(Code::kInvalid,
                 "This model's maximum context length is reached: the rollout has {} tokens "
                 "already, and requests that run may add {}: {} of {} are too many",
                 known.num_tokens, known.num_pending, tokens_max, kMemberTokensMax);
  OpenRun& run = open_[name];
  ++run.num_begun;
  ++run.num_running;
  run.num_pending += tokens_max;
  return ok();
}

void RunTurns::end(const MemberName& name, int64_t tokens_max) {
  const auto found = open_.find(name);
  if (found == open_.end()) return;
  OpenRun& run = found->second;
  --run.num_running;
  run.num_pending -= tokens_max;
  if (run.num_running == 0 && run.num_turns == 0) open_.erase(found);
}

MemberTurn RunTurns::add(const MemberName& name, int64_t tokens_max,
                         const std::vector<int32_t>& prompt, const std::vector<int32_t>& tokens) {
  OpenRun& run = open_[name];
  --run.num_running;
  run.num_pending -= tokens_max;
  const size_t sequence = extended_by(run.sequences, prompt);
  if (sequence == run.sequences.size()) run.sequences.emplace_back();
  TokenPrefix& end = run.sequences[sequence];
  MemberTurn turn;
  turn.name = name;
  turn.index = run.num_turns++;
  turn.sequence = static_cast<int32_t>(sequence);
  turn.known = end;
  turn.prompt_tokens.assign(prompt.begin() + end.num_tokens, prompt.end());
  turn.tokens = tokens;
  end = end.extended(turn.prompt_tokens).extended(tokens);
  run.num_tokens += static_cast<int64_t>(turn.prompt_tokens.size() + tokens.size());
  return turn;
}

MemberTurn RunTurns::close(const MemberName& name) {
  MemberTurn last;
  last.name = name;
  last.is_last = true;
  if (const auto found = open_.find(name); found != open_.end()) {
    last.index = found->second.num_turns;
    open_.erase(found);
  }
  if (is_closed(name)) return last;
  closed_.push_back(name);
  closed_by_name_.insert(name);
  if (closed_.size() > kClosedRunsMax) {
    closed_by_name_.erase(closed_.front());
    closed_.pop_front();
  }
  return last;
}

int64_t RunTurns::num_begun(const MemberName& name) const {
  const auto found = open_.find(name);
  return found == open_.end() ? 0 : found->second.num_begun;
}

}  // namespace primerl
