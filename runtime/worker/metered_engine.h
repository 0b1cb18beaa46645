/// Metrics of a process's engines, for /metrics and `ps`. An observer counts the versions
/// that an engine applied, how busy it is at the end of a step, and how long each request took. It
/// also writes the events of its prefix cache into the run folder. Versions come only from
/// Engine::apply(); a refused version is not counted.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "graph/base/real_clock.h"
#include "kernels/engine/engine.h"
#include "kernels/weights/weights_key.h"
#include "runtime/exec/executor.h"
#include "runtime/wire/process_report.h"

namespace primerl {

/// One request that ended without an abort.
struct RequestTimes {
  Duration to_first_token;
  Duration whole;
  int64_t num_prompt_tokens = 0;
  int64_t num_tokens = 0;  // sampled
};

/// One entry per engine of the process and key of its weights. Thread-safe: engines write on the
/// threads of their actor groups.
class EngineMetrics {
 public:
  /// `now` defaults to the real clock.
  explicit EngineMetrics(std::function<Time()> now = steady_now) : now_(std::move(now)) {}
  Time now() const { return now_(); }

  /// Adds an engine that has applied nothing yet: version -1 of the first tenant.
  void add(uint32_t resource, uint32_t group);
  void applied(uint32_t resource, uint32_t group, const KeyedVersion& version, Duration took);
  /// The entry of the key is removed; the last one of an engine has applied nothing again.
  void dropped(uint32_t resource, uint32_t group, WeightsKey key);
  void held(uint32_t resource, uint32_t group, bool is_held);
  void set_holders(uint32_t resource, uint32_t group, const std::vector<EngineHolder>& holders);
  void stepped(uint32_t resource, uint32_t group, const EngineState& state);
  /// Total events of the prefix cache: those in the file, and those that were dropped.
  void set_kv_event_counts(uint32_t resource, uint32_t group, uint64_t written, uint64_t dropped);
  /// `num_tokens` more were computed for a tenant whose version was applied.
  void served(uint32_t resource, uint32_t group, TenantSlot tenant, uint64_t num_tokens);
  void ended(uint32_t resource, uint32_t group, std::span<const RequestTimes> requests);
  std::vector<EngineReport> reports() const;
  std::vector<EngineUse> uses() const;

 private:
  EngineUse& use_of(uint32_t resource, uint32_t group);

  const std::function<Time()> now_;
  mutable std::mutex mutex_;
  std::vector<EngineReport> reports_;
  std::vector<EngineUse> uses_;
  // End times of pauses, by resource and group.
  std::map<std::pair<uint32_t, uint32_t>, std::vector<std::pair<std::string, Time>>> holders_;
};

/// The resources of `make`. Their engines report to `board`. They write the events of their prefix
/// caches to kv_events/ENGINE.GROUP.jsonl of `run_folder`, if their options request that.
ResourceFactory metering_factory(ResourceFactory make, std::shared_ptr<EngineMetrics> board,
                                 std::filesystem::path run_folder);

}  // namespace primerl
