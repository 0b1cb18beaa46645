/// FakeEngine: an Engine of the tests of engines that replay or resume. It returns what the test
/// sets and remembers its calls.
#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/engine.h"
#include "kernels/weights/snapshot.h"

namespace primerl {

class FakeEngine final : public Engine {
 public:
  Status submit(SequenceRequest request) override {
    if (refused.contains(request.id.value))
      return error(Code::kInvalid, "sequence {} is too long", request.id.value);
    if (waiting.size() >= room) return error(Code::kExhausted, "{} sequences wait", room);
    waiting.push_back(request.id.value);
    calls.push_back(fmt::format("submit {}", request.id.value));
    return ok();
  }
  Status take_over(SequenceId id) override {
    calls.push_back(fmt::format("take_over {}", id.value));
    return take_over_fault;
  }
  void abort(SequenceId id) override { calls.push_back(fmt::format("abort {}", id.value)); }
  void expire(SequenceId id) override { calls.push_back(fmt::format("expire {}", id.value)); }
  std::vector<PrefillEvent> take_prefilled() override { return std::exchange(prefilled, {}); }
  std::vector<FinishEvent> take_finished() override { return std::exchange(finished, {}); }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    const uint32_t tenant = snapshot.key.tenant.value;
    calls.push_back(fmt::format("apply {}{}", snapshot.version.value,
                                tenant == 0 ? "" : fmt::format(" of tenant {}", tenant)));
    if (!apply_fault.ok()) return apply_fault.error();
    return snapshot.tensors.size();
  }
  void drop(WeightsKey key) override { calls.push_back(fmt::format("drop {}", to_string(key))); }
  EngineState state() const override {
    EngineState state;
    state.num_waiting = static_cast<int32_t>(waiting.size());
    state.versions = versions;
    return state;
  }
  int32_t max_sequence_tokens() const override { return longest; }
  Status step() override {
    calls.push_back("step");
    return ok();
  }
  bool has_work() const override { return !is_paused && !waiting.empty(); }
  void set_paused(bool paused) override { is_paused = paused; }

  /// Completes the prompt of a waiting sequence.
  void complete(uint64_t id) {
    std::erase(waiting, id);
    prefilled.push_back({SequenceId(id), 3});
  }
  void finish(uint64_t id) {
    FinishEvent event;
    event.id = SequenceId(id);
    event.tokens = {7};
    finished.push_back(event);
  }

  std::vector<uint64_t> waiting;
  bool is_paused = false;
  size_t room = 100;
  std::set<uint64_t> refused;
  Status apply_fault, take_over_fault;
  int32_t longest = 64;
  std::vector<PrefillEvent> prefilled;
  std::vector<FinishEvent> finished;
  std::vector<std::string> calls;
  VersionsByKey versions;
};

inline std::vector<uint64_t> ids(const std::vector<PrefillEvent>& events) {
  std::vector<uint64_t> ids;
  for (const auto& event : events) ids.push_back(event.id.value);
  return ids;
}

inline std::vector<std::string> ends(const std::vector<FinishEvent>& events) {
  std::vector<std::string> ends;
  for (const auto& event : events)
    ends.push_back(fmt::format("{} {}{}{}", event.id.value, to_string(event.reason),
                               event.detail.empty() ? "" : ": ", event.detail));
  return ends;
}

inline WeightSnapshot snapshot_of(int64_t version, size_t num_tensors) {
  WeightSnapshot snapshot;
  snapshot.version = PolicyVersion(version);
  snapshot.tensors.resize(num_tensors);
  return snapshot;
}

inline SequenceRequest sequence_request(uint64_t id) {
  SequenceRequest request;
  request.id = SequenceId(id);
  request.prompt_tokens = {1, 2, 3};
  return request;
}

}  // namespace primerl
