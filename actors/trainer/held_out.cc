#include "actors/trainer/held_out.h"

#include <algorithm>
#include <utility>

#include "kernels/train/packing.h"

namespace primerl {
namespace {

TrainSample sample_of(const std::vector<int32_t>& tokens, const std::vector<uint8_t>& trains,
                      const std::vector<float>& weights) {
  TrainSample sample;
  sample.tokens = tokens;
  sample.loss_mask = trains;
  sample.weights = weights;
  return sample;
}

}  // namespace

void HeldOut::start_at(PolicyVersion version, bool is_resumed) {
  start_ = version;
  is_resumed_ = is_resumed;
}

Status HeldOut::add(const Trajectory& member, const SampleLimits& limits) {
  const TrainSample sample = sample_of(member.tokens, member.sampled, member.weights);
  RETURN_IF_ERROR(check_sample(sample, LossKind::kCrossEntropy, limits));
  if (std::count(sample.loss_mask.begin() + 1, sample.loss_mask.end(), 1) == 0)
    return error(Code::kInvalid, "none of its {} tokens has a loss", sample.tokens.size());
  if (!is_full()) num_tokens_ += static_cast<int64_t>(sample.tokens.size());
  if (is_full())
    return error(Code::kExhausted, "the held-out rows have more than {} tokens", kHeldOutTokensMax)
        .note("write rows = N in the eval table of the tenant: the first N rows are measured");
  rows_.push_back({member.tokens, member.sampled, member.weights});
  return ok();
}

bool HeldOut::is_due(PolicyVersion version, const TenantEval& eval, bool is_last,
                     bool are_complete) const {
  if (!eval.is_on() || rows_.empty() || evaluated_ == version) return false;
  const bool is_first = version == start_;
  if (is_first && !are_complete) return false;
  if (is_last && eval.at_end) return true;
  if (is_first && !is_resumed_) return eval.at_start;
  return version.value % eval.interval == 0;
}

size_t HeldOut::part_end() const {
  size_t end = next_;
  int64_t num_tokens = 0;
  do {
    num_tokens += std::ssize(rows_[end++].tokens);
  } while (end < rows_.size() && num_tokens + std::ssize(rows_[end].tokens) <= kEvaluatedTokens);
  return end;
}

TrainBatch HeldOut::next_part(TenantSlot tenant) const {
  TrainBatch batch;
  batch.tenant = tenant;
  batch.loss = LossKind::kCrossEntropy;
  for (size_t i = next_; i < part_end(); ++i)
    batch.samples.push_back(sample_of(rows_[i].tokens, rows_[i].trains, rows_[i].weights));
  return batch;
}

std::optional<double> HeldOut::add(const AnswerLoss& loss, PolicyVersion version) {
  sum_.sum += loss.sum;
  sum_.num_tokens += loss.num_tokens;
  next_ = part_end();
  if (next_ < rows_.size()) return std::nullopt;
  const AnswerLoss all = std::exchange(sum_, {});
  next_ = 0;
  evaluated_ = version;
  return all.sum / static_cast<double>(std::max<int64_t>(all.num_tokens, 1));
}

}  // namespace primerl
