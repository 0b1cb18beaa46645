#include "kernels/train/learner.h"

#include <algorithm>

namespace primerl {
namespace {

/// At least 1: an empty batch is a turn, too.
int64_t num_tokens_of(const TrainBatch& batch) {
  int64_t num_tokens = 0;
  for (const auto& sample : batch.samples) num_tokens += std::ssize(sample.tokens);
  return std::max<int64_t>(num_tokens, 1);
}

/// Says of each report of a pass how many tokens the pass had.
void tell_pass_tokens(std::vector<Result<TrainReport>>& reports) {
  if (reports.size() < 2) return;
  int64_t num_tokens = 0;
  for (const auto& report : reports) num_tokens += report.ok() ? report->num_tokens : 0;
  for (auto& report : reports)
    if (report.ok()) report->num_pass_tokens = num_tokens;
}

}  // namespace

std::vector<Result<TrainReport>> Learner::step_together(std::span<const TrainBatch* const> batches,
                                                        const StopRequested& stop_requested) {
  std::vector<Result<TrainReport>> reports;
  for (const TrainBatch* batch : batches) reports.push_back(step(*batch, stop_requested));
  return reports;
}

std::optional<Result<TrainReport>> Learner::step_in_line(std::shared_ptr<const TrainBatch> batch,
                                                         uint64_t turn,
                                                         const StopRequested& stop_requested) {
  const TenantSlot tenant = batch->tenant;
  if (!reports_.contains(tenant)) {
    const int64_t num_tokens = num_tokens_of(*batch);
    line_[tenant] = std::move(batch);
    run_pass(turns_.ask(tenant, num_tokens, turn), stop_requested);
  }
  const auto found = reports_.find(tenant);
  if (found == reports_.end()) return std::nullopt;
  Result<TrainReport> report = std::move(found->second);
  reports_.erase(found);
  return report;
}

void Learner::run_pass(const std::vector<TenantSlot>& tenants,
                       const StopRequested& stop_requested) {
  if (tenants.empty()) return;
  std::vector<const TrainBatch*> batches;
  for (const TenantSlot tenant : tenants) batches.push_back(line_.at(tenant).get());
  auto reports = step_together(batches, stop_requested);
  tell_pass_tokens(reports);
  for (size_t i = 0; i < tenants.size(); ++i) {
    reports_.emplace(tenants[i], std::move(reports[i]));
    line_.erase(tenants[i]);
  }
}

void Learner::leave_line(TenantSlot tenant) {
  turns_.leave(tenant);
  line_.erase(tenant);
  reports_.erase(tenant);
}

}  // namespace primerl
