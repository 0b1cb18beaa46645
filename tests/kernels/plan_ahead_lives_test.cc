// Random lives. A row of the cache contains a hash of all tokens up to its own; a token is a
// function of that hash and the request's seed. So the tokens of a sequence are known without a
// scheduler, and a wrong token read by a row, or a block reused too early, is detected.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "graph/base/random.h"
#include "tests/kernels/kv_follower.h"
#include "tests/kernels/scheduler_steps.h"

namespace primerl {
namespace {

constexpr int32_t kEosOfLives = 1;  // of make_scheduler()
constexpr int kTurns = 120;

struct DrawnToken {
  int32_t token = 0;
  float logprob = -1;
};

DrawnToken draw(uint64_t seed, uint64_t history) {
  const uint64_t bits = mix(seed, history);
  return {static_cast<int32_t>(1 + bits % 20),
          (bits >> 32U) % 100 == 0 ? std::numeric_limits<float>::quiet_NaN() : -1};
}

/// The result of a request that is not disturbed.
FinishEvent answer_to(const SequenceRequest& request) {
  FinishEvent end;
  uint64_t history = 0;
  for (const int32_t token : request.prompt_tokens)
    history = mix(history, static_cast<uint64_t>(token));
  for (;;) {
    const auto [token, logprob] = draw(request.seed, history);
    end.reason = FinishReason::kFailed;
    if (!std::isfinite(logprob)) return end;
    end.tokens.push_back(token);
    history = mix(history, static_cast<uint64_t>(token));
    end.reason = FinishReason::kStop;
    if (token == kEosOfLives) return end;
    end.reason = FinishReason::kLength;
    if (std::ssize(end.tokens) == request.sampling.max_tokens) return end;
  }
}

struct LifeCounts {
  int64_t num_ahead = 0;     // steps planned ahead
  int64_t num_left = 0;      // rows whose token was discarded
  int64_t num_whole = 0;     // sequences that ended by themselves
  int64_t num_prefixes = 0;  // sequences that were ended early
  int64_t num_hits = 0;      // prompt tokens found in the cache
};

class Lives {
 public:
  Lives(uint64_t seed, bool goes_ahead, LifeCounts& counts)
      : random_(seed),
        goes_ahead_(goes_ahead),
        counts_(counts),
        options_(random_options()),
        scheduler_({options_, 50, {kEosOfLives}}) {
    cache_.resize(static_cast<size_t>(options_.kv_blocks * options_.block_size), 0);
    apply();
  }

  void run() {
    for (int i = 0; i < kTurns; ++i) {
      turn();
      follow_blocks();
    }
    for (int i = 0; i < 10000 && (scheduler_.has_work() || !held_.empty()); ++i) {
      take_over(held_.size());
      step();
      follow_blocks();
    }
    EXPECT_TRUE(requests_.empty()) << "every sequence ends";
    EXPECT_FALSE(under_way_.has_value());
    const auto state = scheduler_.state();
    EXPECT_EQ(state.num_free_blocks, state.num_blocks);
    EXPECT_EQ(state.num_waiting + state.num_held + state.num_running, 0);
    counts_.num_hits += static_cast<int64_t>(state.num_prefix_hits);
  }

 private:
  struct Step {
    StepPlan plan;
    std::vector<DrawnToken> drawn;
    bool has_failed = false;
    PolicyVersion version;
  };

  EngineOptions random_options() {
    EngineOptions options;
    options.kv_blocks = static_cast<int32_t>(6 + random_.below(30));
    options.block_size = static_cast<int32_t>(1 + random_.below(6));
    options.max_running = static_cast<int32_t>(1 + random_.below(16));
    options.max_batched_tokens = static_cast<int32_t>(1 + random_.below(30));
    options.max_sequence_tokens = options.kv_blocks * options.block_size;
    options.max_waiting = 10;
    options.max_prefill_tokens = static_cast<int32_t>(random_.below(4));
    options.prefix_cache = random_.below(4) != 0;
    options.kv_events_bytes_max = 1;
    options.adapter_slots = static_cast<int32_t>(random_.below(4));
    // The last tenants, or all, have no share.
    options.shares.assign(random_.below(kAdapters + 1), 1.0 / kAdapters);
    return options;
  }

  void turn() {
    switch (random_.below(16)) {
      case 0:
      case 1:
        submit({10, 11, 12, 13, 14, 15, 16});
        break;
      case 2:
        submit({2});
        break;
      case 3:
        if (!said_.empty()) submit(said_[random_.below(said_.size())]);  // a later turn
        break;
      case 4:
        if (random_.below(2) == 0) abort();
        break;
      case 5:
        if (random_.below(4) == 0) apply();
        break;
      case 6:
      case 7:
        take_over(random_.below(3));
        break;
      default:
        step();
    }
  }

  void submit(const std::vector<int32_t>& prompt) {
    for (uint64_t count = 1 + random_.below(4); count > 0; --count) {
      SequenceRequest request;
      request.id = SequenceId(next_id_++);
      const auto adapter = static_cast<int32_t>(random_.below(kAdapters));
      request.tenant = TenantSlot(options_.adapter_slots == 0 ? 0 : static_cast<uint32_t>(adapter));
      request.salt = random_.below(4) == 0 ? "b" : "a";
      request.prompt_tokens = prompt;
      request.sampling.max_tokens = static_cast<int32_t>(1 + random_.below(12));
      request.seed = random_.below(1000);
      request.priority = static_cast<int32_t>(random_.below(2));
      if (scheduler_.submit(request, options_.adapter_slots == 0 ? kNoAdapter : adapter).ok())
        requests_[request.id.value] = request;
    }
  }

  void take_over(uint64_t count) {
    for (; count > 0 && !held_.empty(); --count) {
      EXPECT_TRUE(scheduler_.take_over(*held_.begin()).ok());
      held_.erase(held_.begin());
    }
    hear();
  }

  void abort() {
    if (next_id_ == 0) return;
    const SequenceId id(random_.below(next_id_));
    held_.erase(id);
    aborted_.insert(id.value);
    scheduler_.abort(id);
    hear();
  }

  void apply() {
    if (under_way_) take();
    version_ = version_.next();
    for (uint32_t tenant = 0; tenant < kAdapters; ++tenant)
      scheduler_.set_version({TenantSlot(tenant)}, version_);
  }

  /// A step as in an engine.
  void step() {
    if (scheduler_.next_load()) scheduler_.slots().finish();
    if (!under_way_) {
      Step first;
      if (!scheduler_.plan(first.plan)) return;
      launch(first);
      under_way_ = std::move(first);
    }
    Step next;
    const bool has_next = goes_ahead_ && random_.below(8) != 0 && scheduler_.plan_ahead(next.plan);
    if (has_next) launch(next);
    take();
    if (!has_next) return;
    ++counts_.num_ahead;
    under_way_ = std::move(next);
  }

  /// The simulated device computes it at once, with the tokens sampled in the previous step.
  void launch(Step& step) {
    EXPECT_LE(step.plan.rows.num_rows(), options_.max_batched_tokens);
    step.version = version_;
    step.has_failed = random_.below(60) == 0;
    for (const RowCopy& copy : step.plan.copies)
      std::copy_n(cache_.begin() + copy.from, copy.num_rows, cache_.begin() + copy.to);
    for (const auto& span : step.plan.rows.spans) compute(step.plan.rows, span);
    for (const auto& sample : step.plan.samples) {
      const int32_t cached = step.plan.rows.cache_rows[static_cast<size_t>(sample.row)];
      step.drawn.push_back(
          draw(sample.sequence->request.seed, cache_[static_cast<size_t>(cached)]));
    }
    if (step.has_failed) {
      for (const int32_t row : step.plan.rows.cache_rows) cache_[static_cast<size_t>(row)] = kWrong;
      for (DrawnToken& drawn : step.drawn) drawn.token = 0;
    }
    last_drawn_ = step.drawn;
  }

  void compute(const RowBatch& rows, const RowSpan& span) {
    const int32_t size = options_.block_size;
    const auto key = [&](int32_t j) {
      return rows.kv_blocks[static_cast<size_t>(span.kv_offset + j / size)] * size + j % size;
    };
    for (int32_t i = 0; i < span.num_queries; ++i) {
      const auto row = static_cast<size_t>(span.query_begin + i);
      const int32_t position = span.num_cached + i;
      EXPECT_EQ(key(position), rows.cache_rows[row]);
      int32_t token = rows.tokens[row];
      if (token < 0) token = last_drawn_.at(static_cast<size_t>(token_of_sample(token))).token;
      const uint64_t before = position == 0 ? 0 : cache_[static_cast<size_t>(key(position - 1))];
      cache_[static_cast<size_t>(rows.cache_rows[row])] = mix(before, static_cast<uint64_t>(token));
    }
  }

  void take() {
    const Step step = std::move(*under_way_);
    under_way_.reset();
    for (size_t i = 0; i < step.drawn.size(); ++i) {
      Sequence& sequence = *step.plan.samples[i].sequence;
      if (sequence.has_finished) {
        ++counts_.num_left;
      } else if (!step.has_failed && std::isfinite(step.drawn[i].logprob)) {
        versions_[sequence.request.id.value].push_back(step.version);
      }
      if (!step.has_failed) scheduler_.accept(sequence, step.drawn[i].token, step.drawn[i].logprob);
    }
    if (step.has_failed)
      scheduler_.fail_step(step.plan, "as the test says");
    else
      scheduler_.finish_step();
    hear();
  }

  void hear() {
    for (const auto& event : scheduler_.take_prefilled()) held_.insert(event.id);
    for (const auto& end : scheduler_.take_finished()) check(end);
  }

  void check(const FinishEvent& end) {
    const auto found = requests_.find(end.id.value);
    ASSERT_NE(found, requests_.end()) << "it ended twice";
    const FinishEvent want = answer_to(found->second);
    const std::string what = fmt::format("sequence {}", end.id.value);
    ASSERT_LE(end.tokens.size(), want.tokens.size()) << what;
    EXPECT_TRUE(std::equal(end.tokens.begin(), end.tokens.end(), want.tokens.begin())) << what;
    EXPECT_EQ(end.tokens.size(), end.logprobs.size()) << what;
    if (is_complete(end.reason)) {
      EXPECT_EQ(end.reason, want.reason) << what;
      EXPECT_EQ(end.tokens.size(), want.tokens.size()) << what;
      ++counts_.num_whole;
      remember(found->second, end.tokens);
    } else {
      EXPECT_EQ(end.reason == FinishReason::kCancelled, aborted_.contains(end.id.value)) << what;
      ++counts_.num_prefixes;
    }
    int32_t num_covered = 0;
    for (const VersionSpan& span : end.spans) {
      EXPECT_EQ(span.begin, num_covered) << what;
      num_covered = span.end;
      for (int32_t i = span.begin; i < span.end; ++i)
        EXPECT_EQ(versions_[end.id.value].at(static_cast<size_t>(i)), span.version) << what;
    }
    EXPECT_EQ(num_covered, std::ssize(end.tokens)) << what;
    requests_.erase(found);
  }

  /// Stores a possible prompt for a later turn.
  void remember(const SequenceRequest& request, const std::vector<int32_t>& tokens) {
    std::vector<int32_t> all = request.prompt_tokens;
    all.insert(all.end(), tokens.begin(), tokens.end());
    if (std::ssize(all) + 12 < options_.max_sequence_tokens) said_.push_back(std::move(all));
  }

  void follow_blocks() {
    const KvEvents taken = scheduler_.take_kv_events();
    EXPECT_EQ(taken.num_dropped, 0U);
    follower_.take(taken);
    EXPECT_EQ(follower_.names(), names_in(scheduler_.blocks()));
  }

  static constexpr uint64_t kWrong = 13;
  static constexpr uint32_t kAdapters = 4;

  RandomStream random_;
  const bool goes_ahead_;
  LifeCounts& counts_;
  const EngineOptions options_;
  BatchScheduler scheduler_;
  PolicyVersion version_ = PolicyVersion(0);  // of all keys
  std::vector<uint64_t> cache_;
  std::vector<DrawnToken> last_drawn_;
  std::optional<Step> under_way_;
  uint64_t next_id_ = 0;
  std::set<SequenceId> held_;
  std::set<uint64_t> aborted_;
  std::map<uint64_t, SequenceRequest> requests_;             // that have not ended
  std::map<uint64_t, std::vector<PolicyVersion>> versions_;  // of each token, at its launch
  std::vector<std::vector<int32_t>> said_;
  KvFollower follower_{options_.block_size, {"a", "b"}};
};

TEST(PlanAheadAtRandom, EverySequenceHasItsTokensAndNoBlockIsLost) {
  LifeCounts ahead, after;
  const auto [first, last] = seeds_of_lives();
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE(seed);
    Lives(seed, true, ahead).run();
    Lives(seed, false, after).run();
    if (HasFailure()) return;
  }
  if (first == last) return;
  const auto lives = static_cast<int64_t>(last);
  EXPECT_GT(ahead.num_ahead, 10 * lives);
  EXPECT_GT(ahead.num_left, lives) << "rows of sequences that had ended";
  EXPECT_GT(ahead.num_hits, lives) << "blocks that were found";
  EXPECT_GT(ahead.num_whole, lives);
  EXPECT_GT(ahead.num_prefixes, lives);
  EXPECT_EQ(after.num_ahead, 0);
  EXPECT_EQ(after.num_left, 0);
}

}  // namespace
}  // namespace primerl
