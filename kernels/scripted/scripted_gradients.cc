#include "kernels/scripted/scripted_gradients.h"

#include <bit>

#include "graph/base/random.h"
#include "kernels/scripted/device_fault.h"
#include "kernels/train/part_losses.h"

namespace primerl {

double uniform_of(uint64_t hash) { return static_cast<double>(hash >> 11) * 0x1p-53; }

float scripted_logprob(uint64_t prefix) {
  return static_cast<float>(-0.01 - 3 * uniform_of(prefix));
}

int32_t ScriptedGradients::rows_wanted() const { return options_.micro_batch_tokens; }

Result<AccumulateRunner::Division> ScriptedGradients::divide(size_t slot, const LossBatch& batch,
                                                             uint64_t first_draws, bool clears) {
  RETURN_IF_ERROR(take_device_fault(options_.device_fault_file, "a scripted accumulate"));
  if (clears) digests_[slot] = 0;
  return Division{pack(batch.data, rows_wanted(), first_draws), 0};
}

Status ScriptedGradients::learn_part(size_t slot, const MicroBatch& batch,
                                     const LearnedPart& part) {
  uint64_t& digest = digests_[slot];
  for (const int32_t token : batch.rows.tokens) digest = mix(digest, static_cast<uint64_t>(token));
  for (const TrainTarget& target : batch.targets) {
    digest = mix(digest, static_cast<uint64_t>(target.label));
    digest = mix(digest, std::bit_cast<uint64_t>(target.weight));
    digest = mix(digest, std::bit_cast<uint32_t>(target.logprob));
    digest = mix(digest, std::bit_cast<uint32_t>(target.advantage));
  }
  return score_part(slot, batch, part);
}

/// Each datum has rows of its own, from position 0 on.
Status ScriptedGradients::score_part(size_t slot, const MicroBatch& batch,
                                     const LearnedPart& part) {
  std::vector<uint64_t> prefixes;
  for (size_t row = 0; row < batch.rows.tokens.size(); ++row) {
    const bool is_first = batch.rows.positions[row] == 0;
    prefixes.push_back(mix(is_first ? history_of_(slot) : prefixes.back(),
                           static_cast<uint64_t>(batch.rows.tokens[row])));
  }
  for (const TrainTarget& target : batch.targets) {
    const uint64_t prefix =
        mix(prefixes[static_cast<size_t>(target.row)], static_cast<uint64_t>(target.label));
    const float log_pi = scripted_logprob(prefix);
    add_token(target, target_loss(target, log_pi, part), log_pi, 0.5 + uniform_of(prefix), part);
  }
  add_cost_(options_.step_cost + options_.token_cost * batch.rows.num_rows());
  return ok();
}

}  // namespace primerl
