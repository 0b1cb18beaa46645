#include "kernels/train/open_gradients.h"

#include <algorithm>
#include <utility>

namespace primerl {

Result<LossResult> OpenGradients::accumulate(size_t slot, const LossBatch& batch,
                                             const StopRequested& stop_requested) {
  RETURN_IF_ERROR(begin(slot, batch));
  while (true)
    if (auto result = pass(slot, stop_requested)) return *std::move(result);
}

std::optional<Result<LossResult>> OpenGradients::accumulate_pass(
    size_t slot, const std::shared_ptr<const LossBatch>& batch,
    const StopRequested& stop_requested) {
  if (const auto found = running_.find(slot);
      found == running_.end() || found->second.owned != batch) {
    const Status begun = begin(slot, *batch);
    if (!begun.ok()) return begun.error();
    running_.at(slot).owned = batch;
  }
  return pass(slot, stop_requested);
}

/// Random keys continue those of the calls before, so that the draws do not depend on the division
/// into calls.
Status OpenGradients::begin(size_t slot, const LossBatch& batch) {
  if (running_.contains(slot))
    return error(Code::kInvalid, "tenant {} has an unfinished accumulate with another batch",
                 batch.tenant)
        .note("call again with the same batch until it has a result, or discard");
  const auto open = open_.find(slot);
  Running running;
  running.forward_only = batch.forward_only;
  running.objective = objective_of(batch.loss);
  const bool is_first = open == open_.end();
  ASSIGN_OR_RETURN(running.division,
                   runner_.divide(slot, batch, is_first ? 0 : open->second.num_data,
                                  is_first && !batch.forward_only));
  for (const LossDatum& datum : batch.data) {
    running.result.logprobs.emplace_back(datum.targets.size());
    running.result.totals.num_tokens += num_rows(datum);
  }
  running_.emplace(slot, std::move(running));
  return ok();
}

Status OpenGradients::run_next(size_t slot, Running& running) {
  const MicroBatch& batch = running.division.micro_batches[running.next];
  LearnedPart part;
  part.count = batch.targets.size();
  part.objective = &running.objective;
  part.per_token = 1;
  part.result = &running.result;
  return running.forward_only ? runner_.score_part(slot, batch, part)
                              : runner_.learn_part(slot, batch, part);
}

std::optional<Result<LossResult>> OpenGradients::pass(size_t slot,
                                                      const StopRequested& stop_requested) {
  Running& running = running_.at(slot);
  if (stop_requested && stop_requested())
    return failed(slot,
                  error(Code::kCancelled, "the accumulate was stopped after {} of {} micro-batches",
                        running.next, running.num_micro_batches()));
  const Status ran = run_next(slot, running);
  if (!ran.ok()) return failed(slot, ran.error());
  if (++running.next < running.num_micro_batches()) return std::nullopt;
  return finish(slot);
}

/// A pass that failed may have added a part of its gradient.
Error OpenGradients::failed(size_t slot, Error fault) {
  const bool opens = !running_.at(slot).forward_only;
  running_.erase(slot);
  if (!opens) return fault;
  const auto open = open_.find(slot);
  const int32_t num_calls = open == open_.end() ? 0 : open->second.num_calls;
  close(slot);
  return std::move(fault).note(
      fmt::format("the open gradients of {} earlier calls are discarded too", num_calls));
}

LossResult OpenGradients::finish(size_t slot) {
  Running running = std::move(running_.at(slot));
  running_.erase(slot);
  if (running.forward_only) return std::move(running.result);
  Open& open = open_[slot];
  ++open.num_calls;
  open.num_micro_batches += static_cast<int32_t>(running.num_micro_batches());
  open.num_data += running.result.logprobs.size();
  open.flops += running.division.flops;
  open.totals.add(running.result.totals);
  return std::move(running.result);
}

int64_t OpenGradients::next_rows(size_t slot, const LossBatch& batch) const {
  if (is_running(slot, batch)) {
    const Running& running = running_.at(slot);
    return running.division.micro_batches[running.next].rows.num_rows();
  }
  int64_t longest = 1, all = 0;
  for (const LossDatum& datum : batch.data) {
    longest = std::max(longest, std::ssize(datum.tokens));
    all += std::ssize(datum.tokens);
  }
  return std::max(longest, std::min<int64_t>(all, runner_.rows_wanted()));
}

bool OpenGradients::is_running(size_t slot, const LossBatch& batch) const {
  const auto found = running_.find(slot);
  return found != running_.end() && found->second.owned.get() == &batch;
}

bool OpenGradients::has_open(size_t slot) const {
  const auto found = running_.find(slot);
  return open_.contains(slot) || (found != running_.end() && !found->second.forward_only);
}

Status OpenGradients::check_none(size_t slot, std::string_view what) const {
  if (!has_open(slot)) return ok();
  const auto open = open_.find(slot);
  return error(Code::kInvalid, "{} while the tenant has open gradients of {} accumulate calls",
               what, open == open_.end() ? 1 : open->second.num_calls)
      .note("apply or discard them first: no checkpoint has them");
}

Status OpenGradients::check_may_step(size_t slot) const {
  RETURN_IF_ERROR(check_none(slot, "a training step"));
  if (!has_unfinished(slot)) return ok();
  return error(Code::kInvalid, "a training step while an accumulate of the tenant is not finished")
      .note("call again with the same batch until it has a result, or discard");
}

Result<TrainReport> OpenGradients::report(size_t slot) const {
  if (running_.contains(slot))
    return error(Code::kInvalid, "an update while an accumulate of the tenant is not finished");
  const auto found = open_.find(slot);
  if (found == open_.end())
    return error(Code::kInvalid, "an update without open gradients")
        .note("accumulate first; an update, a load and an error of an accumulate close them");
  const Open& open = found->second;
  TrainReport report;
  report.loss = open.totals.loss;
  report.num_tokens = open.totals.num_tokens;
  report.num_loss_tokens = open.totals.num_trained;
  report.num_micro_batches = open.num_micro_batches;
  report.measures.flops = open.flops;
  return report;
}

void OpenGradients::close(size_t slot) {
  open_.erase(slot);
  running_.erase(slot);
}

}  // namespace primerl
