#include "runtime/worker/metered_engine.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "kernels/engine/observed_engine.h"
#include "kernels/engine/options.h"
#include "runtime/backends/backends.h"
#include "runtime/backends/devices.h"
#include "runtime/worker/kv_event_file.h"

namespace primerl {
namespace {

class EngineMeter final : public EngineObserver {
 public:
  EngineMeter(std::shared_ptr<EngineMetrics> board, uint32_t resource, uint32_t group,
              std::optional<KvEventFileSetup> kv_events)
      : board_(std::move(board)), resource_(resource), group_(group) {
    if (kv_events) kv_events_.emplace(*std::move(kv_events));
    board_->add(resource_, group_);
  }

  void applying() override { began_applying_ = board_->now(); }
  void applied(const WeightSnapshot& snapshot,
               const Result<std::optional<uint64_t>>& num_tensors) override {
    if (num_tensors.ok() && num_tensors->has_value())
      board_->applied(resource_, group_, snapshot.name(), board_->now() - began_applying_);
  }

  void dropped(WeightsKey key) override { board_->dropped(resource_, group_, key); }

  void submitted(const SequenceRequest& request, const Status& status) override {
    if (status.ok())
      started_[request.id.value] = {
          board_->now(), {}, request.tenant, std::ssize(request.prompt_tokens)};
  }

  void prefilled(const std::vector<PrefillEvent>& events) override {
    for (const PrefillEvent& event : events)
      if (const auto found = started_.find(event.id.value); found != started_.end())
        found->second.first_token = board_->now();
  }

  void finished(const std::vector<FinishEvent>& events) override {
    ended_.clear();
    for (const FinishEvent& event : events) {
      const auto found = started_.find(event.id.value);
      if (found == started_.end()) continue;
      const Started started = found->second;
      started_.erase(found);
      const int64_t num_computed =
          std::max<int64_t>(started.num_prompt_tokens - event.num_cached_tokens, 0);
      board_->served(resource_, group_, started.tenant,
                     static_cast<uint64_t>(num_computed) + event.tokens.size());
      if (event.reason != FinishReason::kStop && event.reason != FinishReason::kLength) continue;
      const Time now = board_->now();
      ended_.push_back({started.first_token.value_or(now) - started.began, now - started.began,
                        started.num_prompt_tokens, static_cast<int64_t>(event.tokens.size())});
    }
    if (!ended_.empty()) board_->ended(resource_, group_, ended_);
  }

  /// Called in each work call, so only a change is reported.
  void paused(bool is_paused) override {
    if (std::exchange(is_held_, is_paused) != is_paused) board_->held(resource_, group_, is_paused);
  }

  void holders_shown(const std::vector<EngineHolder>& holders) override {
    board_->set_holders(resource_, group_, holders);
  }

  void stepped(Engine& engine, const Status& /*status*/) override {
    board_->stepped(resource_, group_, engine.state());
    if (!kv_events_) return;
    kv_events_->write(engine.take_kv_events(), wall_seconds());
    board_->set_kv_event_counts(resource_, group_, kv_events_->num_written(),
                                kv_events_->num_dropped());
  }

 private:
  struct Started {
    Time began;
    std::optional<Time> first_token;
    TenantSlot tenant;
    int64_t num_prompt_tokens = 0;
  };

  const std::shared_ptr<EngineMetrics> board_;
  const uint32_t resource_, group_;
  bool is_held_ = false;
  Time began_applying_;
  std::optional<KvEventFile> kv_events_;           // none: its options request no events
  std::unordered_map<uint64_t, Started> started_;  // by SequenceId: sequences in the engine
  std::vector<RequestTimes> ended_;                // scratch
};

/// None if the options of the engine request no events.
std::optional<KvEventFileSetup> kv_events_of(const Plan& plan, int32_t index,
                                             const std::filesystem::path& run_folder) {
  const PlanResource& resource = plan.resources[static_cast<size_t>(index)];
  // The options of a plugin's engine have their own type; all others begin with EngineOptions.
  if (resource.backend != "torch" || resource.options == nullptr) return std::nullopt;
  const auto& options = *static_cast<const EngineOptions*>(resource.options.get());
  if (options.kv_events_bytes_max == 0) return std::nullopt;
  KvEventFileSetup setup;
  setup.file = run_folder / "kv_events" /
               fmt::format("{}.{}.jsonl", resource.name, plan.group(owner_of(plan, index)).name);
  setup.bytes_max = options.kv_events_bytes_max;
  setup.medium = device_of(plan, index);
  for (const Tenant& tenant : plan.tenants) setup.tenants.push_back(tenant.name);
  return setup;
}

}  // namespace

void EngineMetrics::add(uint32_t resource, uint32_t group) {
  const std::lock_guard lock(mutex_);
  reports_.push_back({.resource = resource, .group = group});
  EngineUse& use = uses_.emplace_back();
  use.resource = resource;
  use.group = group;
}

EngineUse& EngineMetrics::use_of(uint32_t resource, uint32_t group) {
  const auto use = std::find_if(uses_.begin(), uses_.end(), [&](const EngineUse& one) {
    return one.resource == resource && one.group == group;
  });
  CHECK(use != uses_.end(), "an engine that was not added");
  return *use;
}

void EngineMetrics::ended(uint32_t resource, uint32_t group,
                          std::span<const RequestTimes> requests) {
  const std::lock_guard lock(mutex_);
  auto& histograms = use_of(resource, group).requests;
  histograms.resize(kRequestValues);
  const auto add = [&](RequestValue kind, double value) {
    histograms[static_cast<size_t>(kind)].add(kind, value);
  };
  for (const RequestTimes& request : requests) {
    const auto num_tokens = static_cast<double>(request.num_tokens);
    const Duration decoding = request.whole - request.to_first_token;
    add(RequestValue::kTimeToFirstToken, request.to_first_token.to_seconds());
    // For a single token it is 0, as vLLM counts it.
    add(RequestValue::kTimePerOutputToken,
        request.num_tokens > 1 ? decoding.to_seconds() / (num_tokens - 1) : 0.0);
    add(RequestValue::kTime, request.whole.to_seconds());
    add(RequestValue::kPromptTokens, static_cast<double>(request.num_prompt_tokens));
    add(RequestValue::kGenerationTokens, num_tokens);
  }
}

void EngineMetrics::held(uint32_t resource, uint32_t group, bool is_held) {
  const std::lock_guard lock(mutex_);
  use_of(resource, group).is_held = is_held;
}

void EngineMetrics::stepped(uint32_t resource, uint32_t group, const EngineState& state) {
  const std::lock_guard lock(mutex_);
  EngineUse* const use = &use_of(resource, group);
  use->num_running = static_cast<uint32_t>(state.num_running);
  use->num_waiting = static_cast<uint32_t>(state.num_waiting);
  use->num_held = static_cast<uint32_t>(state.num_held);
  use->num_free_blocks = static_cast<uint32_t>(state.num_free_blocks);
  use->num_blocks = static_cast<uint32_t>(state.num_blocks);
  use->num_prefill_tokens = state.num_prefill_tokens;
  use->num_decode_tokens = state.num_decode_tokens;
  use->num_preemptions = state.num_preemptions;
  use->num_recomputed_tokens = state.num_recomputed_tokens;
  use->num_prefix_queries = state.num_prefix_queries;
  use->num_prefix_hits = state.num_prefix_hits;
  use->num_evicted_blocks = state.num_evicted_blocks;
  use->num_adapter_loads = state.num_adapter_loads;
  use->num_adapter_evictions = state.num_adapter_evictions;
}

void EngineMetrics::set_holders(uint32_t resource, uint32_t group,
                                const std::vector<EngineHolder>& holders) {
  const Time now = now_();
  const std::lock_guard lock(mutex_);
  auto& ends = holders_[{resource, group}];
  ends.clear();
  for (const EngineHolder& holder : holders) ends.emplace_back(holder.owner, now + holder.left);
}

std::vector<EngineUse> EngineMetrics::uses() const {
  const Time now = now_();
  const std::lock_guard lock(mutex_);
  auto uses = uses_;
  for (EngineUse& use : uses)
    if (const auto found = holders_.find({use.resource, use.group}); found != holders_.end())
      for (const auto& [owner, end] : found->second)
        use.holders.push_back({owner, std::max((end - now).to_nanoseconds(), int64_t{0})});
  return uses;
}

void EngineMetrics::applied(uint32_t resource, uint32_t group, const KeyedVersion& version,
                            Duration took) {
  const std::lock_guard lock(mutex_);
  const uint32_t tenant = version.key.tenant.value, adapter = version.key.adapter.value;
  const auto is_it = [&](const EngineReport& one) {
    return one.resource == resource && one.group == group &&
           (one.version < 0 || (one.tenant == tenant && one.adapter == adapter));
  };
  auto report = std::find_if(reports_.begin(), reports_.end(), is_it);
  if (report == reports_.end())
    report = reports_.insert(report, {.resource = resource, .group = group});
  report->tenant = tenant;
  report->adapter = adapter;
  report->version = version.version.value;
  ++report->num_applied;
  report->apply_ns += static_cast<uint64_t>(took.to_nanoseconds());
}

void EngineMetrics::dropped(uint32_t resource, uint32_t group, WeightsKey key) {
  const std::lock_guard lock(mutex_);
  const auto is_of_engine = [&](const EngineReport& one) {
    return one.resource == resource && one.group == group;
  };
  const auto report = std::ranges::find_if(reports_, [&](const EngineReport& one) {
    return is_of_engine(one) && one.version >= 0 && one.tenant == key.tenant.value &&
           one.adapter == key.adapter.value;
  });
  if (report == reports_.end()) return;
  if (std::ranges::count_if(reports_, is_of_engine) > 1)
    reports_.erase(report);
  else
    *report = {.resource = resource, .group = group};
}

void EngineMetrics::served(uint32_t resource, uint32_t group, TenantSlot tenant,
                           uint64_t num_tokens) {
  const std::lock_guard lock(mutex_);
  for (EngineReport& one : reports_)
    if (one.resource == resource && one.group == group && one.tenant == tenant.value) {
      one.num_tokens += num_tokens;
      return;
    }
}

std::vector<EngineReport> EngineMetrics::reports() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

void EngineMetrics::set_kv_event_counts(uint32_t resource, uint32_t group, uint64_t written,
                                        uint64_t dropped) {
  const std::lock_guard lock(mutex_);
  EngineUse& use = use_of(resource, group);
  use.num_kv_events = written;
  use.num_kv_events_dropped = dropped;
}

ResourceFactory metering_factory(ResourceFactory make, std::shared_ptr<EngineMetrics> board,
                                 std::filesystem::path run_folder) {
  return [make = std::move(make), board = std::move(board), run_folder = std::move(run_folder)](
             const Plan& plan, int32_t index) -> Result<std::shared_ptr<Resource>> {
    auto made = make(plan, index);
    if (!made.ok()) return made;
    if (auto* engine = observed_engine(*made))
      engine->add(std::make_unique<EngineMeter>(board, static_cast<uint32_t>(index),
                                                owner_of(plan, index).value,
                                                kv_events_of(plan, index, run_folder)));
    return made;
  };
}

}  // namespace primerl
