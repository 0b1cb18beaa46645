/// CutTrace: what a kill, or a power loss, leaves of a recorded run.
#pragma once

#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/trace/read/trace.h"

namespace primerl::sim {

/// A recorded run as far as its first steps of all groups: what a kill leaves.
class CutTrace final : public Trace {
 public:
  CutTrace(std::shared_ptr<const Trace> whole, std::vector<uint64_t> last)
      : whole_(std::move(whole)), last_(std::move(last)) {}
  const std::filesystem::path& folder() const override { return whole_->folder(); }
  const TraceCatalog& catalog() const override { return whole_->catalog(); }
  bool is_closed() const override { return false; }
  bool is_complete() const override { return whole_->is_complete(); }
  const std::vector<TraceFault>& faults() const override { return whole_->faults(); }
  uint64_t first_step(GroupId group) const override { return last_step(group) == 0 ? 0 : 1; }
  uint64_t last_step(GroupId group) const override { return last_[group.index()]; }
  uint64_t num_steps() const override {
    uint64_t sum = 0;
    for (uint64_t last : last_) sum += last;
    return sum;
  }
  std::optional<TraceStep> step(GroupId group, uint64_t step) const override {
    if (step > last_step(group)) return std::nullopt;
    return whole_->step(group, step);
  }
  std::vector<NondeterministicInput> notes(GroupId group, uint64_t step) const override {
    return whole_->notes(group, step);
  }
  std::optional<Time> started(GroupId group) const override { return whole_->started(group); }
  std::optional<StepRef> delivery(const MessageKey& key) const override {
    const auto found = whole_->delivery(key);
    if (!found) return found;
    const auto& instance = catalog().instances[found->instance.index()];
    return found->step > last_[instance.group] ? std::nullopt : found;
  }
  Result<StoredPayload> payload(const MessageKey& key) const override {
    return whole_->payload(key);
  }
  bool has_payload(const MessageKey& key) const override { return whole_->has_payload(key); }
  std::vector<MessageKey> stored_emissions(GroupId group, uint64_t step) const override {
    return whole_->stored_emissions(group, step);
  }
  const TraceSummary& summary() const override { return whole_->summary(); }
  std::optional<Digest> digest(GroupId group, uint64_t block) const override {
    return whole_->digest(group, block);
  }
  void visit(Time from, Time to,
             const std::function<bool(const TraceStep&)>& visitor) const override {
    whole_->visit(from, to, visitor);
  }

 private:
  const std::shared_ptr<const Trace> whole_;
  const std::vector<uint64_t> last_;
};

}  // namespace primerl::sim
