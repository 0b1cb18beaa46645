// Thousands of random lives of sequences with a symbolic cache: a row contains a hash of all tokens
// up to its own. So a block reused too early, a row shared wrongly or a key out of order is
// detected. Some steps fail and leave wrong keys, some rows have NaN logits.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

#include "graph/base/random.h"
#include "tests/kernels/kv_follower.h"
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

constexpr int kSteps = 120;

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed), options_(random_options()), scheduler_({options_, 50, {1}}) {
    cache_.resize(static_cast<size_t>(options_.kv_blocks * options_.block_size), 0);
  }

  void run() {
    for (int i = 0; i < kSteps; ++i) {
      turn();
      follow_blocks();
    }
    for (int i = 0; i < 10000 && (scheduler_.has_work() || !held_.empty()); ++i) {
      take_over(held_.size());
      step();
      follow_blocks();
    }
    EXPECT_EQ(ended_, submitted_) << "every sequence ends once";
    const auto state = scheduler_.state();
    EXPECT_EQ(state.num_free_blocks, state.num_blocks);
    EXPECT_EQ(state.num_waiting + state.num_held + state.num_running, 0);
    EXPECT_EQ(state.num_completed, num_completed_);
    EXPECT_EQ(state.num_failed, num_failed_);
  }

 private:
  EngineOptions random_options() {
    EngineOptions options;
    options.kv_blocks = static_cast<int32_t>(4 + random_.below(20));
    options.block_size = static_cast<int32_t>(1 + random_.below(6));
    options.max_running = static_cast<int32_t>(1 + random_.below(16));
    options.max_batched_tokens = static_cast<int32_t>(1 + random_.below(12));
    options.max_sequence_tokens = options.kv_blocks * options.block_size;
    options.max_waiting = 10;
    options.max_prefill_tokens = static_cast<int32_t>(random_.below(4));
    options.prefix_cache = random_.below(4) != 0;
    options.kv_events_bytes_max = 1;
    options.shares = random_shares();
    return options;
  }

  /// Of one to four tenants; the sum is at most 1.
  std::vector<double> random_shares() {
    std::vector<double> shares(1 + random_.below(4));
    for (double& share : shares)
      share = static_cast<double>(1 + random_.below(9)) / 9.0 / static_cast<double>(shares.size());
    return shares;
  }

  void turn() {
    switch (random_.below(8)) {
      case 0:
      case 1:
      case 2:
        submit();
        break;
      case 3:
        take_over(random_.below(3));
        break;
      case 4:
        abort();
        break;
      case 5:
        if (random_.below(4) == 0)
          scheduler_.set_version({any_tenant()}, version_ = version_.next());
        break;
      default:
        step();
    }
  }

  TenantSlot any_tenant() {
    return TenantSlot(static_cast<uint32_t>(random_.below(options_.shares.size())));
  }

  /// A group: the same prompt several times over.
  void submit() {
    const TenantSlot tenant = any_tenant();
    const auto kind = static_cast<int32_t>(random_.below(3));
    const std::string salt = random_.below(2) == 0 ? "a" : "b";
    for (uint64_t count = 1 + random_.below(3) * random_.below(6); count > 0; --count)
      submit_one(tenant, kind, salt);
  }

  void submit_one(TenantSlot tenant, int32_t kind, const std::string& salt) {
    SequenceRequest request;
    request.id = SequenceId(next_id_++);
    request.tenant = tenant;
    request.salt = salt;
    for (int32_t i = 0; i < 1 + 3 * kind; ++i) request.prompt_tokens.push_back(2 + kind * 9 + i);
    request.sampling.max_tokens = static_cast<int32_t>(1 + random_.below(6));
    request.priority = static_cast<int32_t>(random_.below(2));
    const uint64_t id = request.id.value;
    if (scheduler_.submit(std::move(request)).ok()) submitted_.insert(id);
  }

  void take_over(uint64_t count) {
    for (; count > 0 && !held_.empty(); --count) {
      EXPECT_TRUE(scheduler_.take_over(*held_.begin()).ok());
      held_.erase(held_.begin());
    }
    collect();
  }

  void abort() {
    if (next_id_ == 0) return;
    const SequenceId id(random_.below(next_id_));
    held_.erase(id);
    scheduler_.abort(id);
    collect();
  }

  void step() {
    StepPlan plan;
    if (!scheduler_.plan(plan)) return;
    EXPECT_LE(static_cast<int32_t>(plan.samples.size()), options_.max_batched_tokens);
    std::set<const Sequence*> sampled;
    for (const auto& sample : plan.samples) EXPECT_TRUE(sampled.insert(sample.sequence).second);
    for (const RowCopy& copy : plan.copies)
      std::copy_n(cache_.begin() + copy.from, copy.num_rows, cache_.begin() + copy.to);
    compute(plan.rows);
    if (random_.below(30) == 0) {
      for (const int32_t row : plan.rows.cache_rows) cache_[static_cast<size_t>(row)] = kWrong;
      scheduler_.fail_step(plan, "as the test says");
      hear();
      return;
    }
    for (const auto& sample : plan.samples) {
      expect_history(sample, plan.rows);
      const bool is_number = random_.below(100) != 0;
      scheduler_.accept(*sample.sequence, static_cast<int32_t>(1 + random_.below(20)),
                        is_number ? -1 : std::numeric_limits<float>::quiet_NaN());
    }
    scheduler_.finish_step();
    hear();
  }

  void hear() {
    for (const auto& event : scheduler_.take_prefilled()) held_.insert(event.id);
    collect();
  }

  /// Writes the value of each row: the hash of the value before it and its own token.
  void compute(const RowBatch& rows) {
    EXPECT_LE(rows.num_rows(), options_.max_batched_tokens);
    std::set<int32_t> written;
    for (const auto& span : rows.spans) {
      for (int32_t i = 0; i < span.num_queries; ++i) {
        const auto row = static_cast<size_t>(span.query_begin + i);
        const int32_t position = span.num_cached + i;
        EXPECT_EQ(rows.positions[row], position);
        const auto key = [&](int32_t j) {
          const int32_t size = options_.block_size;
          return rows.kv_blocks[static_cast<size_t>(span.kv_offset + j / size)] * size + j % size;
        };
        EXPECT_EQ(key(position), rows.cache_rows[row]);
        EXPECT_TRUE(written.insert(rows.cache_rows[row]).second) << "two rows write one key";
        const uint64_t before = position == 0 ? 0 : cache_[static_cast<size_t>(key(position - 1))];
        cache_[static_cast<size_t>(rows.cache_rows[row])] =
            mix(before, static_cast<uint64_t>(rows.tokens[row]));
      }
    }
  }

  void expect_history(const StepPlan::Sample& sample, const RowBatch& rows) {
    const auto& sequence = *sample.sequence;
    std::vector<int32_t> tokens = sequence.request.prompt_tokens;
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    uint64_t expected = 0;
    for (const int32_t token : tokens) expected = mix(expected, static_cast<uint64_t>(token));
    const int32_t cached = rows.cache_rows[static_cast<size_t>(sample.row)];
    EXPECT_EQ(cache_[static_cast<size_t>(cached)], expected);
  }

  void collect() {
    for (const auto& event : scheduler_.take_finished()) {
      EXPECT_TRUE(ended_.insert(event.id.value).second);
      EXPECT_EQ(event.tokens.size(), event.logprobs.size());
      num_completed_ += is_complete(event.reason) ? 1U : 0U;
      num_failed_ += event.reason == FinishReason::kFailed ? 1U : 0U;
    }
  }

  /// A follower that replays the events knows exactly the names of the pool.
  void follow_blocks() {
    const KvEvents taken = scheduler_.take_kv_events();
    EXPECT_EQ(taken.num_dropped, 0U);
    follower_.take(taken);
    EXPECT_EQ(follower_.names(), names_in(scheduler_.blocks()));
  }

  static constexpr uint64_t kWrong = 13;

  RandomStream random_;
  const EngineOptions options_;
  BatchScheduler scheduler_;
  PolicyVersion version_ = PolicyVersion(0);
  std::vector<uint64_t> cache_;
  uint64_t next_id_ = 0;
  std::set<SequenceId> held_;
  std::set<uint64_t> submitted_, ended_;
  uint64_t num_completed_ = 0, num_failed_ = 0;
  KvFollower follower_{options_.block_size, {"a", "b"}};
};

TEST(BatchSchedulerAtRandom, KeepsEveryHistoryCorrectAndFreesEverything) {
  const auto [first, last] = seeds_of_lives();
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE(seed);
    Simulation(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace primerl
