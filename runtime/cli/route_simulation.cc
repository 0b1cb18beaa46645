#include "runtime/cli/route_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <queue>
#include <set>

#include "actors/router/prefix_table.h"
#include "actors/router/router.h"
#include "graph/base/random.h"

namespace primerl {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

int64_t num_blocks_of(const TracedTurn& turn) {
  const int64_t num_tokens = int64_t{turn.num_prompt_tokens} + turn.num_completion_tokens;
  return (num_tokens + kRouteBlockTokens - 1) / kRouteBlockTokens;
}

/// Sequences that share a token rate equally. All get the same number of tokens, so they differ
/// only in when they joined.
class Batch {
 public:
  explicit Batch(double tokens_per_s) : tokens_per_s_(tokens_per_s) {}
  void join(uint32_t turn, int32_t num_tokens, double now_s) {
    move_to(now_s);
    ends_.emplace(num_got_ + num_tokens, turn);
  }
  /// When the next sequence ends; infinity without one.
  double next_end_s() const {
    if (ends_.empty()) return std::numeric_limits<double>::infinity();
    const double left = std::max(0.0, ends_.begin()->first - num_got_);
    return updated_s_ + left * static_cast<double>(ends_.size()) / tokens_per_s_;
  }
  /// Removes the sequence that ends now.
  uint32_t leave(double now_s) {
    updated_s_ = now_s;
    num_got_ = std::max(num_got_, ends_.begin()->first);
    const uint32_t turn = ends_.begin()->second;
    ends_.erase(ends_.begin());
    if (ends_.empty()) num_got_ = 0;  // small numbers are exact for longer
    return turn;
  }

 private:
  void move_to(double now_s) {
    if (!ends_.empty())
      num_got_ += (now_s - updated_s_) * tokens_per_s_ / static_cast<double>(ends_.size());
    updated_s_ = now_s;
  }

  double tokens_per_s_;
  double updated_s_ = 0;
  double num_got_ = 0;  // tokens that a sequence would have which joined when the batch was empty
  std::set<std::pair<double, uint32_t>> ends_;  // number of tokens at which each turn ends
};

struct SimulatedEngine {
  explicit SimulatedEngine(const SimulatedEngines& options) : batch(options.decode_tokens_per_s) {}
  Batch batch;
  PrefixTable cache;            // blocks in the engine's cache
  PrefixTable sent;             // blocks that the router assumes in the cache
  double prefill_free_s = 0;    // when it can begin the next prompt
  uint64_t num_requests = 0;    // requests that were sent and have not ended, for the load guard
  int64_t num_held_blocks = 0;  // blocks of those requests
  double request_seconds = 0;
  double updated_s = 0;

  void change_load(int64_t by, double now_s) {
    request_seconds += static_cast<double>(num_requests) * (now_s - updated_s);
    updated_s = now_s;
    num_requests += static_cast<uint64_t>(by);
  }
};

/// For sorted values: the smallest value that is not below this share of them.
double percentile(const std::vector<double>& values, double share) {
  const auto rank = std::ceil(share * static_cast<double>(values.size()));
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

class Simulation {
 public:
  Simulation(const SessionTrace& trace, const RoutePolicyContract& policy,
             const SimulatedEngines& options)
      : trace_(trace), options_(options), policy_(policy.make()) {
    outcome_.policy = policy.name;
    const auto count = static_cast<size_t>(options.num_engines);
    engines_.assign(count, SimulatedEngine(options));
    for (uint32_t i = 0; i < count; ++i) ids_.emplace_back(i + 1);
    engine_of_session_.assign(trace.num_sessions, -1);
    first_s_.assign(trace.num_groups, std::numeric_limits<double>::infinity());
    last_s_.assign(trace.num_groups, 0);
    engine_of_.assign(trace.turns.size(), kNone);
    link_turns();
  }

  RouteOutcome play() {
    while (!events_.empty() || !std::isinf(next_end().first)) {
      const auto [end_s, engine] = next_end();
      if (!events_.empty() && events_.top().at_s <= end_s) {
        const Event event = events_.top();
        events_.pop();
        if (event.is_prefilled)
          begin_decode(event.turn, event.at_s);
        else
          begin(event.turn, event.at_s);
      } else {
        finish(engines_[engine].batch.leave(end_s), end_s);
      }
    }
    return sum_up();
  }

 private:
  struct Event {
    double at_s = 0;
    uint32_t turn = 0;
    bool is_prefilled = false;
    /// Latest first, as a priority queue needs it; at equal times the earlier line of the trace
    /// comes first.
    friend bool operator<(const Event& a, const Event& b) {
      return std::tie(a.at_s, a.turn, a.is_prefilled) > std::tie(b.at_s, b.turn, b.is_prefilled);
    }
  };

  void link_turns() {
    next_.assign(trace_.turns.size(), kNone);
    std::vector<uint32_t> last(trace_.num_sessions, kNone);
    for (uint32_t i = 0; i < trace_.turns.size(); ++i) {
      const TracedTurn& turn = trace_.turns[i];
      uint32_t& before = last[turn.session];
      if (before == kNone)
        events_.push({turn.arrival_s, i, false});
      else
        next_[before] = i;
      before = i;
      first_s_[turn.group] = std::min(first_s_[turn.group], turn.arrival_s);
    }
  }

  /// When and on which engine the next sequence ends.
  std::pair<double, size_t> next_end() const {
    std::pair<double, size_t> next{std::numeric_limits<double>::infinity(), 0};
    for (size_t i = 0; i < engines_.size(); ++i)
      next = std::min(next, {engines_[i].batch.next_end_s(), i});
    return next;
  }

  /// Asks the policy as the router does (actors/router/router.cc).
  size_t choose(const TracedTurn& turn, std::span<const uint64_t> prompt_blocks) {
    RouteQuestion question;
    question.session = turn.session;
    question.session_key = mix(0, turn.session);
    question.num_prompt_tokens = turn.num_prompt_tokens;
    question.sticky = engine_of_session_[turn.session];
    if (const auto home = policy_->home(question, ids_)) return checked(*home);
    std::vector<EngineView> views;
    for (size_t i = 0; i < engines_.size(); ++i) {
      const int64_t num_free =
          std::max<int64_t>(0, options_.kv_blocks - engines_[i].num_held_blocks);
      views.push_back({ids_[i], engines_[i].num_requests, static_cast<int32_t>(num_free),
                       static_cast<int32_t>(options_.kv_blocks)});
    }
    if (policy_->wants_known_tokens()) {
      const auto named = prompt_blocks.first(std::min(prompt_blocks.size(), kRouteBlocksMax));
      for (SimulatedEngine& engine : engines_) {
        question.num_known_tokens.push_back(static_cast<int32_t>(engine.sent.num_known(named)) *
                                            kRouteBlockTokens);
      }
      const size_t chosen = checked(policy_->choose(question, views));
      engines_[chosen].sent.add(named, static_cast<size_t>(RouterOptions().prefix_blocks_max));
      return chosen;
    }
    return checked(policy_->choose(question, views));
  }
  size_t checked(size_t index) const { return index < engines_.size() ? index : 0; }

  void begin(uint32_t index, double now_s) {
    const TracedTurn& turn = trace_.turns[index];
    const auto blocks = std::span(turn.blocks).first(turn.num_prompt_blocks());
    const size_t chosen = choose(turn, blocks);
    engine_of_[index] = static_cast<uint32_t>(chosen);
    engine_of_session_[turn.session] = static_cast<int32_t>(chosen);
    SimulatedEngine& engine = engines_[chosen];
    engine.change_load(1, now_s);
    engine.num_held_blocks += num_blocks_of(turn);
    // The last token of a prompt is always computed, because its output starts the decoding.
    const auto num_found = static_cast<int64_t>(engine.cache.num_known(blocks)) * kRouteBlockTokens;
    const int64_t num_cached = std::min<int64_t>(num_found, turn.num_prompt_tokens - 1);
    engine.cache.add(blocks, static_cast<size_t>(options_.kv_blocks));
    num_prompt_tokens_ += turn.num_prompt_tokens;
    num_cached_tokens_ += num_cached;
    const auto num_new = static_cast<double>(turn.num_prompt_tokens - num_cached);
    engine.prefill_free_s =
        std::max(engine.prefill_free_s, now_s) + num_new / options_.prefill_tokens_per_s;
    events_.push({engine.prefill_free_s, index, true});
  }

  void begin_decode(uint32_t index, double now_s) {
    engines_[engine_of_[index]].batch.join(index, trace_.turns[index].num_completion_tokens, now_s);
  }

  void finish(uint32_t index, double now_s) {
    const TracedTurn& turn = trace_.turns[index];
    SimulatedEngine& engine = engines_[engine_of_[index]];
    engine.change_load(-1, now_s);
    engine.num_held_blocks -= num_blocks_of(turn);
    engine.cache.add(turn.blocks, static_cast<size_t>(options_.kv_blocks));
    last_s_[turn.group] = std::max(last_s_[turn.group], now_s);
    outcome_.end_s = std::max(outcome_.end_s, now_s);
    if (next_[index] == kNone) return;
    const double arrival_s = trace_.turns[next_[index]].arrival_s;
    events_.push({std::max(arrival_s, now_s), next_[index], false});
  }

  RouteOutcome sum_up() {
    double most = 0, sum = 0;
    for (const SimulatedEngine& engine : engines_) {
      most = std::max(most, engine.request_seconds);
      sum += engine.request_seconds;
      outcome_.loads_at_end.push_back(engine.num_requests);
    }
    if (sum > 0) outcome_.balance = most * static_cast<double>(engines_.size()) / sum;
    if (num_prompt_tokens_ > 0)
      outcome_.hit_rate =
          static_cast<double>(num_cached_tokens_) / static_cast<double>(num_prompt_tokens_);
    std::vector<double> waits;
    for (size_t i = 0; i < last_s_.size(); ++i) waits.push_back(last_s_[i] - first_s_[i]);
    std::ranges::sort(waits);
    if (!waits.empty()) {
      outcome_.group_p50_s = percentile(waits, 0.5);
      outcome_.group_p90_s = percentile(waits, 0.9);
    }
    return std::move(outcome_);
  }

  const SessionTrace& trace_;
  const SimulatedEngines options_;
  const std::unique_ptr<RoutePolicy> policy_;
  std::vector<SimulatedEngine> engines_;
  std::vector<InstanceId> ids_;  // [engines]
  std::priority_queue<Event> events_;
  std::vector<uint32_t> next_;              // [turns], next turn of the same session
  std::vector<uint32_t> engine_of_;         // [turns]
  std::vector<int32_t> engine_of_session_;  // [sessions], the engine of its last turn
  std::vector<double> first_s_, last_s_;    // [groups]
  int64_t num_prompt_tokens_ = 0, num_cached_tokens_ = 0;
  RouteOutcome outcome_;
};

}  // namespace

RouteOutcome simulate_routes(const SessionTrace& trace, const RoutePolicyContract& policy,
                             const SimulatedEngines& engines) {
  return Simulation(trace, policy, engines).play();
}

}  // namespace primerl
