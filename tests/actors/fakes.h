/// Resources and messages for tests of single actors: small, scripted by the test, without
/// randomness.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "actors/env/environment.h"
#include "actors/messages/generation.h"
#include "actors/messages/rollout.h"
#include "graph/tenant.h"
#include "kernels/engine/engine.h"
#include "kernels/text/tokenizer.h"
#include "kernels/train/learner.h"
#include "kernels/train/packing.h"
#include "kernels/weights/memory_channel.h"

namespace primerl::testing {

inline Tenant a_tenant(int64_t group_size = 2, int64_t groups = 2, int64_t max_off_policy = 1) {
  Tenant tenant;
  tenant.name = "main";
  tenant.group_size = group_size;
  tenant.batch_size = group_size * groups;
  tenant.max_off_policy_steps = max_off_policy;
  tenant.max_steps = 10;
  tenant.seq_len = 64;
  tenant.sampling.max_tokens = 8;
  return tenant;
}

/// One token per byte, with the byte as its id. '!' cannot be encoded, and ids below 9 cannot be
/// decoded. Its special token is "<eos>".
class ByteTokenizer final : public Tokenizer {
 public:
  Result<std::vector<int32_t>> encode_text(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (const char c : text) {
      if (c == '!') return error(Code::kInvalid, "character '!' has no token");
      ids.push_back(static_cast<unsigned char>(c));
    }
    return ids;
  }
  Result<std::vector<int32_t>> encode_with_specials(std::string_view text) const override {
    const size_t at = text.find("<eos>");
    if (at == std::string_view::npos) return encode_text(text);
    ASSIGN_OR_RETURN(auto ids, encode_text(text.substr(0, at)));
    ids.push_back(eos_.front());
    ASSIGN_OR_RETURN(const auto rest, encode_with_specials(text.substr(at + 5)));
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }
  Result<std::string> decode(const std::vector<int32_t>& ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 9) return error(Code::kInvalid, "no token has the id {}", id);
      text.push_back(static_cast<char>(id));
    }
    return text;
  }
  std::string_view bytes_of(int32_t id) const override {
    static const std::string kBytes = [] {
      std::string bytes;
      for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
      return bytes;
    }();
    if (id < 9 || id > 255) return {};
    return std::string_view(kBytes).substr(static_cast<size_t>(id), 1);
  }
  int32_t vocab_size() const override { return 256; }
  const std::vector<int32_t>& eos_ids() const override { return eos_; }
  int32_t pad_id() const override { return -1; }

 private:
  std::vector<int32_t> eos_{'\n'};
};

/// An engine that does only what the test calls.
class FakeEngine final : public Engine {
 public:
  Status submit(SequenceRequest request) override {
    if (request.prompt_tokens.size() > 100) return error(Code::kInvalid, "the prompt is too long");
    if (waiting.size() >= max_waiting) return error(Code::kExhausted, "no room");
    waiting.insert(request.id);
    submitted.push_back(std::move(request));
    return ok();
  }
  Status take_over(SequenceId id) override {
    if (held.erase(id) == 0) return error(Code::kNotFound, "no sequence {}", id);
    running.insert(id);
    return ok();
  }
  void abort(SequenceId id) override {
    if (waiting.count(id) + held.count(id) + running.count(id) > 0)
      finish(id, FinishReason::kCancelled);
  }
  void expire(SequenceId id) override {
    if (held.count(id) > 0 && told.count(id) > 0) finish(id, FinishReason::kRefused);
  }
  std::vector<PrefillEvent> take_prefilled() override {
    for (const auto& event : prefilled) told.insert(event.id);
    return std::exchange(prefilled, {});
  }
  std::vector<FinishEvent> take_finished() override { return std::exchange(finished, {}); }
  bool prepare(const std::shared_ptr<const WeightSnapshot>&) override {
    return num_preparations++ >= preparations_needed;
  }
  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    if (!apply_fault.empty()) return error(Code::kInvalid, "{}", apply_fault);
    const bool is_new = snapshot.version != versions.of(snapshot.key);
    CHECK(versions.set(snapshot.key, snapshot.version), "too many keys");
    return is_new ? uint64_t{3} : uint64_t{0};
  }
  void drop(WeightsKey key) override {
    dropped.push_back(key);
    versions.erase(key);
    for (const SequenceRequest& request : submitted)
      if (request.key() == key) abort(request.id);
  }
  EngineState state() const override {
    EngineState state;
    state.num_waiting = static_cast<int32_t>(waiting.size());
    state.num_held = static_cast<int32_t>(held.size());
    state.num_running = static_cast<int32_t>(running.size());
    state.num_blocks = state.num_free_blocks = 8;
    state.num_room = static_cast<int32_t>(max_waiting - waiting.size());
    state.num_decode_tokens = num_decode_tokens;
    state.num_completed = num_completed;
    state.num_failed = num_failed;
    state.versions = versions;
    return state;
  }
  int32_t max_sequence_tokens() const override { return 100; }
  bool has_work() const override { return false; }

  void prefill(SequenceId id) {
    waiting.erase(id);
    held.insert(id);
    prefilled.push_back({id, 2});
  }
  void finish(SequenceId id, FinishReason reason, std::vector<int32_t> tokens = {},
              Blob kept = {}) {
    waiting.erase(id);
    held.erase(id);
    running.erase(id);
    std::erase_if(prefilled, [id](const PrefillEvent& event) { return event.id == id; });
    num_completed += is_complete(reason) ? 1U : 0U;
    num_failed += reason == FinishReason::kFailed ? 1U : 0U;
    FinishEvent event;
    event.id = id;
    event.reason = reason;
    event.was_prefilled = told.erase(id) > 0;
    event.logprobs.assign(tokens.size(), -0.5F);
    if (!tokens.empty()) event.spans = {{PolicyVersion(0), 0, static_cast<int32_t>(tokens.size())}};
    event.tokens = std::move(tokens);
    event.kept = std::move(kept);
    finished.push_back(std::move(event));
  }

  std::vector<SequenceRequest> submitted;
  std::vector<WeightsKey> dropped;
  size_t max_waiting = 1000;
  std::set<SequenceId> waiting, held, running;
  std::set<SequenceId> told;  // their PrefillEvent was reported
  std::vector<PrefillEvent> prefilled;
  std::vector<FinishEvent> finished;
  VersionsByKey versions;
  uint64_t num_decode_tokens = 0, num_completed = 0, num_failed = 0;
  int num_preparations = 0;     // number of calls of apply_prepared()
  int preparations_needed = 0;  // calls until a version counts as prepared
  std::string apply_fault;
};

/// Counts steps; the test scripts the next reports.
class FakeLearner : public Learner {
 public:
  Result<TrainReport> step(const TrainBatch& batch, const StopRequested& stop) override {
    if (stop()) return error(Code::kCancelled, "stop requested");
    RETURN_IF_ERROR(check_samples(batch, limits_));
    batches.push_back(batch);
    TrainReport report = reported;
    report.num_tokens = 100;
    report.grad_norm = 0.25;
    if (num_to_skip > 0) {
      --num_to_skip;
      report.skipped = true;
      report.skip_reason = "the gradient is not finite";
    } else {
      ++steps;
    }
    return report;
  }
  Result<std::shared_ptr<const WeightSnapshot>> snapshot(TenantSlot,
                                                         PolicyVersion version) override {
    auto snapshot = std::make_shared<WeightSnapshot>();
    snapshot->version = version;
    return std::shared_ptr<const WeightSnapshot>(std::move(snapshot));
  }
  Result<std::vector<float>> score(TenantSlot, const std::vector<int32_t>&) override {
    return std::vector<float>{};
  }
  Result<AnswerLoss> evaluate(const TrainBatch& batch) override {
    evaluated.push_back(batch);
    return AnswerLoss{2.0 * static_cast<double>(batch.samples.size()), std::ssize(batch.samples)};
  }
  Status save(TenantSlot, const std::filesystem::path& folder) override {
    saved.push_back(folder);
    return ok();
  }
  Status load(TenantSlot, const std::filesystem::path& folder) override {
    loaded = folder;
    return ok();
  }
  SampleLimits limits() const override { return limits_; }

  std::vector<TrainBatch> batches;
  std::vector<TrainBatch> evaluated;
  TrainReport reported;  // by each step, besides the numbers that step() sets
  SampleLimits limits_{1000, 256};
  int64_t steps = 0;
  int num_to_skip = 0;
  std::vector<std::filesystem::path> saved;
  std::filesystem::path loaded;
};

/// A member of a finished group: two prompt tokens and three sampled ones.
inline Trajectory a_trajectory(uint64_t id, double reward) {
  Trajectory trajectory;
  trajectory.trajectory = id;
  trajectory.tokens = {65, 66, 97, 98, 99};
  trajectory.sampled = {0, 0, 1, 1, 1};
  trajectory.logprobs = {0, 0, -1, -1, -1};
  trajectory.reward = reward;
  trajectory.num_turns = 1;
  return trajectory;
}

inline TrajectoryGroup a_group(uint64_t ordinal, int64_t version, std::vector<double> rewards) {
  TrajectoryGroup group;
  group.ordinal = ordinal;
  group.version = PolicyVersion(version);
  for (size_t i = 0; i < rewards.size(); ++i)
    group.members.push_back(a_trajectory(ordinal * 100 + i, rewards[i]));
  return group;
}

}  // namespace primerl::testing
