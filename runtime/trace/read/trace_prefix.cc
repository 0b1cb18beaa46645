#include "runtime/trace/read/trace_prefix.h"

#include <algorithm>
#include <optional>

#include "runtime/trace/read/index.h"

namespace primerl {
namespace {

class PrefixTrace final : public Trace {
 public:
  PrefixTrace(std::shared_ptr<const Trace> whole, std::vector<uint64_t> last)
      : whole_(std::move(whole)), last_(std::move(last)) {}

  const std::filesystem::path& folder() const override { return whole_->folder(); }
  const TraceCatalog& catalog() const override { return whole_->catalog(); }
  std::optional<TraceExcerpt> excerpt() const override { return whole_->excerpt(); }
  bool is_closed() const override { return whole_->is_closed(); }
  bool is_complete() const override { return whole_->is_complete(); }
  const std::vector<TraceFault>& faults() const override { return whole_->faults(); }
  uint64_t first_step(GroupId group) const override {
    return last_step(group) == 0 ? 0 : whole_->first_step(group);
  }
  uint64_t last_step(GroupId group) const override {
    const uint64_t last = std::min(last_[group.index()], whole_->last_step(group));
    return last < whole_->first_step(group) ? 0 : last;
  }
  uint64_t num_steps() const override {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < last_.size(); ++i)
      if (const uint64_t last = last_step(GroupId(i)); last > 0)
        sum += last + 1 - first_step(GroupId(i));
    return sum;
  }
  std::optional<TraceStep> step(GroupId group, uint64_t step) const override {
    return has(group, step) ? whole_->step(group, step) : std::nullopt;
  }
  std::vector<NondeterministicInput> notes(GroupId group, uint64_t step) const override {
    return has(group, step) ? whole_->notes(group, step) : std::vector<NondeterministicInput>();
  }
  void visit_notes(GroupId group, uint64_t step,
                   const std::function<void(NoteKind, InstanceId, std::span<const std::byte>)>&
                       visitor) const override {
    if (has(group, step)) whole_->visit_notes(group, step, visitor);
  }
  std::optional<Time> started(GroupId group) const override { return whole_->started(group); }
  std::optional<StepRef> delivery(const MessageKey& key) const override {
    const auto found = whole_->delivery(key);
    return found && has(target_of(key), found->step) ? found : std::nullopt;
  }
  std::optional<TraceStep> delivered_step(const MessageKey& key) const override {
    auto found = whole_->delivered_step(key);
    return found && has(found->group, found->step) ? found : std::nullopt;
  }
  Result<StoredPayload> payload(const MessageKey& key) const override {
    return whole_->payload(key);
  }
  bool has_payload(const MessageKey& key) const override { return whole_->has_payload(key); }
  std::vector<MessageKey> stored_emissions(GroupId group, uint64_t step) const override {
    return has(group, step) ? whole_->stored_emissions(group, step) : std::vector<MessageKey>();
  }
  const TenantUses& tenants() const override { return whole_->tenants(); }
  const TraceSummary& summary() const override { return whole_->summary(); }
  std::optional<Digest> digest(GroupId group, uint64_t block) const override {
    return has(group, block * kDigestSteps + kDigestSteps - 1) ? whole_->digest(group, block)
                                                               : std::nullopt;
  }
  void visit(Time from, Time to,
             const std::function<bool(const TraceStep&)>& visitor) const override {
    whole_->visit(from, to, [&](const TraceStep& step) {
      return !has(step.group, step.step) || visitor(step);
    });
  }

 private:
  bool has(GroupId group, uint64_t step) const { return step <= last_[group.index()]; }
  GroupId target_of(const MessageKey& key) const {
    return GroupId(catalog().instances[catalog().links[key.link.index()].target].group);
  }

  const std::shared_ptr<const Trace> whole_;
  const std::vector<uint64_t> last_;  // by GroupId
};

}  // namespace

std::shared_ptr<const Trace> trace_up_to(std::shared_ptr<const Trace> whole,
                                         std::vector<uint64_t> last_steps) {
  return std::make_shared<const PrefixTrace>(std::move(whole), std::move(last_steps));
}

}  // namespace primerl
