#include "actors/rollout/driven_run.h"

#include <algorithm>
#include <utility>

#include "kernels/engine/kept_sets.h"

namespace primerl {
namespace {

using Ranges = std::vector<std::pair<int32_t, int32_t>>;

/// The number of first tokens that two sequences share.
int32_t common_length(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  return static_cast<int32_t>(end - a.begin());
}

}  // namespace

Status DrivenRun::add(const MemberTurn& turn) {
  if (turn.index != num_turns())
    return error(Code::kInvalid, "turn {} came after {} turns", turn.index, num_turns());
  if (turn.tokens.empty() || turn.logprobs.size() != turn.tokens.size())
    return error(Code::kInvalid, "turn {} has {} tokens and {} log-probabilities", turn.index,
                 turn.tokens.size(), turn.logprobs.size());
  if (turn.sequence < 0 || std::cmp_greater(turn.sequence, sequences_.size()))
    return error(Code::kInvalid, "turn {} extends sequence {} of {}", turn.index, turn.sequence,
                 sequences_.size());
  const auto number = static_cast<size_t>(turn.sequence);
  const TokenPrefix end = number < sequences_.size() ? sequences_[number].end : TokenPrefix();
  if (turn.known != end)
    return error(Code::kInvalid, "turn {} follows {} tokens of sequence {}, which has {}",
                 turn.index, turn.known.num_tokens, turn.sequence, end.num_tokens);
  if (end.num_tokens == 0 && turn.prompt_tokens.empty())
    return error(Code::kInvalid, "turn {} has no prompt", turn.index);
  const auto added = static_cast<int64_t>(turn.prompt_tokens.size() + turn.tokens.size());
  if (num_tokens() + added > kMemberTokensMax)
    return error(Code::kExhausted, "the run has more than {} tokens", kMemberTokensMax);
  if (number == sequences_.size()) sequences_.emplace_back();
  Sequence& sequence = sequences_[number];
  const auto extend = [](auto& array, const auto& part) {
    array.insert(array.end(), part.begin(), part.end());
  };
  extend(sequence.tokens, turn.prompt_tokens);
  Turn added_turn;
  added_turn.sequence = turn.sequence;
  added_turn.begin = static_cast<int32_t>(sequence.tokens.size());
  extend(sequence.tokens, turn.tokens);
  added_turn.end = static_cast<int32_t>(sequence.tokens.size());
  sequence.logprobs.resize(static_cast<size_t>(added_turn.begin), 0.0F);
  extend(sequence.logprobs, turn.logprobs);
  sequence.end = sequence.end.extended(turn.prompt_tokens).extended(turn.tokens);
  added_turn.spans = turn.spans;
  added_turn.kept = turn.kept;
  turns_.push_back(std::move(added_turn));
  return ok();
}

int64_t DrivenRun::num_tokens() const {
  int64_t count = 0;
  for (const Sequence& sequence : sequences_) count += sequence.end.num_tokens;
  return count;
}

int64_t DrivenRun::num_sampled() const {
  int64_t count = 0;
  for (const Turn& turn : turns_) count += turn.end - turn.begin;
  return count;
}

/// Makes the samples of members, one after the other.
class DrivenRun::Builder {
 public:
  explicit Builder(const DrivenRun& run) : run_(run), is_used_(run.turns_.size(), false) {}

  Result<Samples> member(const MemberResult& result) {
    samples_ = {};
    kept_.clear();
    if (!result.branches.empty()) {
      for (const Branch& branch : result.branches) add_branch(branch.tokens, branch.sampled);
    } else {
      for (const Sequence& sequence : run_.sequences_)
        add_branch(sequence.tokens, {{0, static_cast<int32_t>(sequence.tokens.size())}});
    }
    if (!fault_.ok()) return std::exchange(fault_, ok()).error();
    if (kept_.size() > kKeptBytesMax)
      return error(Code::kExhausted, "the kept sets have {} bytes, at most {} are allowed",
                   kept_.size(), kKeptBytesMax);
    if (std::ssize(samples_.arrays.tokens) > kMemberTokensMax)
      return error(Code::kExhausted, "its samples have more than {} tokens", kMemberTokensMax);
    samples_.arrays.kept = Blob(std::move(kept_));
    kept_ = {};
    return std::move(samples_);
  }

 private:
  /// The turns of a branch that no branch before used.
  std::vector<size_t> turns_of(const std::vector<int32_t>& tokens) {
    std::vector<int32_t> shared;
    for (const Sequence& sequence : run_.sequences_)
      shared.push_back(common_length(tokens, sequence.tokens));
    std::vector<size_t> found;
    for (size_t i = 0; i < run_.turns_.size(); ++i)
      if (!is_used_[i] &&
          run_.turns_[i].end <= shared[static_cast<size_t>(run_.turns_[i].sequence)])
        found.push_back(i);
    // Turns of different sequences may have the same tokens: one of them is enough.
    std::ranges::stable_sort(found, {}, [&](size_t i) { return run_.turns_[i].begin; });
    int32_t end = 0;
    std::erase_if(found, [&](size_t i) {
      const Turn& turn = run_.turns_[i];
      if (turn.begin < end) return true;
      end = turn.end;
      return false;
    });
    return found;
  }

  void add_branch(const std::vector<int32_t>& tokens, const Ranges& trainable) {
    ++samples_.num_branches;
    const std::vector<size_t> turns = turns_of(tokens);
    // Tokens after the last turn would have mask 0.
    const size_t length = turns.empty() ? 0 : static_cast<size_t>(run_.turns_[turns.back()].end);
    Trajectory& arrays = samples_.arrays;
    const size_t offset = arrays.tokens.size();
    arrays.sampled.resize(offset + length, 0);
    arrays.logprobs.resize(offset + length, 0.0F);
    bool has_trained = false;
    for (const size_t i : turns) {
      const bool is_used = add_turn(run_.turns_[i], trainable, offset);
      is_used_[i] = is_used;
      samples_.arrays.num_turns += is_used ? 1 : 0;
      has_trained |= is_used;
    }
    if (!has_trained) {
      ++samples_.num_left_out;
      arrays.sampled.resize(offset);
      arrays.logprobs.resize(offset);
      return;
    }
    if (offset > 0) arrays.sample_begins.push_back(static_cast<int32_t>(offset));
    arrays.tokens.insert(arrays.tokens.end(), tokens.begin(),
                         tokens.begin() + static_cast<std::ptrdiff_t>(length));
  }

  /// Whether a token of the turn trains.
  bool add_turn(const Turn& turn, const Ranges& trainable, size_t offset) {
    const Sequence& sequence = run_.sequences_[static_cast<size_t>(turn.sequence)];
    Trajectory& arrays = samples_.arrays;
    const auto by_end = [](const auto& range, int32_t position) {
      return range.second <= position;
    };
    auto range = std::lower_bound(trainable.begin(), trainable.end(), turn.begin, by_end);
    KeptReader reader(turn.kept.bytes());
    bool is_used = false;
    for (int32_t position = turn.begin; position < turn.end; ++position) {
      while (range != trainable.end() && range->second <= position) ++range;
      const bool trains = range != trainable.end() && range->first <= position;
      if (!turn.kept.empty()) {
        const size_t begin = turn.kept.size() - reader.num_bytes_left();
        if (const auto entry = reader.next(); !entry.ok()) {
          fault_ = entry.error();
          return false;
        }
        const size_t end = turn.kept.size() - reader.num_bytes_left();
        const auto bytes = turn.kept.bytes().subspan(begin, end - begin);
        if (trains) kept_.insert(kept_.end(), bytes.begin(), bytes.end());
      }
      if (!trains) continue;
      const size_t at = offset + static_cast<size_t>(position);
      arrays.sampled[at] = 1;
      arrays.logprobs[at] = sequence.logprobs[static_cast<size_t>(position)];
      add_version(turn, position, static_cast<int32_t>(at));
      is_used = true;
    }
    return is_used;
  }

  /// Spans cover the sampled tokens. Those of one version are one span if they are adjacent or of
  /// one turn, whose tokens with mask 0 it passes: so a turn has as many spans as versions, however
  /// many holes the mask has (group_bytes_max() counts on that).
  void add_version(const Turn& turn, int32_t position, int32_t at) {
    const int32_t index = position - turn.begin;
    for (const VersionSpan& span : turn.spans) {
      if (index < span.begin || index >= span.end) continue;
      auto& spans = samples_.arrays.spans;
      const bool continues = !spans.empty() && spans.back().version == span.version &&
                             (spans.back().end == at || spans.back().end > at - index);
      if (continues)
        spans.back().end = at + 1;
      else
        spans.push_back({span.version, at, at + 1});
      return;
    }
  }

  const DrivenRun& run_;
  std::vector<bool> is_used_;  // turns
  Samples samples_;
  std::vector<std::byte> kept_;
  Status fault_;
};

std::vector<Result<DrivenRun::Samples>> DrivenRun::samples(
    const std::vector<MemberResult>& members) const {
  std::vector<Result<Samples>> samples;
  Builder builder(*this);
  for (const MemberResult& member : members) {
    if (!member.fault.empty())
      samples.emplace_back(Error(Code::kInvalid, member.fault));
    else if (member.branches.empty() && members.size() > 1)
      samples.emplace_back(error(Code::kInvalid,
                                 "its answer has no branches, and {} other members share its turns",
                                 members.size() - 1));
    else
      samples.push_back(builder.member(member));
  }
  return samples;
}

int32_t DrivenRun::num_unmatched(const std::vector<Result<Samples>>& samples) const {
  int32_t count = num_turns();
  for (const auto& each : samples)
    if (each.ok()) count -= each->arrays.num_turns;
  return count;
}

}  // namespace primerl
