
#include <algorithm>
#include <charconv>

#include "actors/router/policies/policy.h"
#include "graph/base/random.h"

namespace primerl {
namespace {

/// Rendezvous hashing: every router chooses the same engine, and when an engine leaves, only its
/// own sessions move.
uint64_t weight(uint64_t session_key, InstanceId engine) { return mix(session_key, engine.value); }

size_t least_loaded(const RouteQuestion& question, std::span<const EngineView> engines) {
  size_t best = 0;
  for (size_t i = 1; i < engines.size(); ++i) {
    const auto& challenger = engines[i];
    const auto& champion = engines[best];
    if (challenger.num_requests > champion.num_requests) continue;
    if (challenger.num_requests < champion.num_requests ||
        weight(question.session_key, challenger.engine) >
            weight(question.session_key, champion.engine))
      best = i;
  }
  return best;
}

double used_share(const EngineView& engine) {
  if (engine.num_blocks <= 0) return 0;
  return 1.0 - static_cast<double>(engine.num_free_blocks) / engine.num_blocks;
}

/// A session stays on the engine with its prefix, unless that engine's KV cache is nearly full and
/// another engine's is not.
class StickyLeastLoaded final : public RoutePolicy {
 public:
  size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) override {
    if (question.sticky < 0) return least_loaded(question, engines);
    const auto sticky = static_cast<size_t>(question.sticky);
    if (used_share(engines[sticky]) <= kFullShare) return sticky;
    const size_t other = least_loaded(question, engines);
    return used_share(engines[other]) < kSpareShare ? other : sticky;
  }

 private:
  static constexpr double kFullShare = 0.95;
  static constexpr double kSpareShare = 0.70;
};

class LeastLoaded final : public RoutePolicy {
 public:
  size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) override {
    return least_loaded(question, engines);
  }
};

/// A policy whose state is the number of its choices.
class Counting : public RoutePolicy {
 public:
  std::string state() const override { return std::to_string(next_); }
  Status restore(std::string_view state) override {
    const auto [end, fault] = std::from_chars(state.data(), state.data() + state.size(), next_);
    if (fault == std::errc() && end == state.data() + state.size()) return ok();
    return error(Code::kCorrupt, "'{}' is not the number of the next choice", state);
  }

 protected:
  uint64_t next_ = 0;
};

class RoundRobin final : public Counting {
 public:
  size_t choose(const RouteQuestion&, std::span<const EngineView> engines) override {
    return static_cast<size_t>(next_++ % engines.size());
  }
};

/// The random number depends on the number of the choice, so a replay chooses the same.
class Random final : public Counting {
 public:
  size_t choose(const RouteQuestion&, std::span<const EngineView> engines) override {
    return static_cast<size_t>(mix(kRandomStream, next_++) % engines.size());
  }

 private:
  static constexpr uint64_t kRandomStream = 0x72616e646f6d;
};

class PowerOfTwo final : public Counting {
 public:
  size_t choose(const RouteQuestion&, std::span<const EngineView> engines) override {
    const uint64_t draw = mix(kPowerOfTwoStream, next_++);
    const auto one = static_cast<size_t>((draw & 0xFFFFFFFF) % engines.size());
    if (engines.size() == 1) return one;
    // A different engine: 1 to size - 1 positions after the first.
    const auto step = 1 + static_cast<size_t>((draw >> 32) % (engines.size() - 1));
    const size_t other = (one + step) % engines.size();
    return engines[other].num_requests < engines[one].num_requests ? other : one;
  }

 private:
  static constexpr uint64_t kPowerOfTwoStream = 0x706f776572;
};

/// A session's engine depends only on the set of engines in use. The session waits for that engine.
/// It moves when that engine leaves, or when a new engine has a larger weight.
class ConsistentHash final : public RoutePolicy {
 public:
  std::optional<size_t> home(const RouteQuestion& question,
                             std::span<const InstanceId> in_use) const override {
    size_t best = 0;
    for (size_t i = 1; i < in_use.size(); ++i)
      if (weight(question.session_key, in_use[i]) > weight(question.session_key, in_use[best]))
        best = i;
    return best;
  }
  size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) override {
    std::vector<InstanceId> with_space;
    for (const EngineView& each : engines) with_space.push_back(each.engine);
    return *home(question, with_space);
  }
};

/// The cost is the number of prompt tokens still to compute there plus the running requests, both
/// in tokens.
class Cost final : public RoutePolicy {
 public:
  size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) override {
    size_t best = 0;
    double lowest = cost(question, engines, 0);
    for (size_t i = 1; i < engines.size(); ++i) {
      const double challenger = cost(question, engines, i);
      if (challenger >= lowest) continue;
      best = i;
      lowest = challenger;
    }
    return best;
  }

 private:
  static constexpr double kMissShare = 0.25;       // share of a session's prompt that is new in
                                                   // each turn
  static constexpr double kTokensPerRequest = 64;  // decode work of one running request
  static double cost(const RouteQuestion& question, std::span<const EngineView> engines,
                     size_t index) {
    const double share = question.sticky == static_cast<int32_t>(index) ? kMissShare : 1.0;
    const double prefill = share * question.num_prompt_tokens;
    const double pressure = 1.0 + used_share(engines[index]);
    return prefill +
           pressure * kTokensPerRequest * static_cast<double>(engines[index].num_requests);
  }
};

/// The engine that was sent the longest prefix of the prompt, as long as the engines have similar
/// loads. An engine with much more load than another is not chosen for its prefixes; it would get
/// even more load.
class CacheAware final : public RoutePolicy {
 public:
  bool wants_known_tokens() const override { return true; }
  size_t choose(const RouteQuestion& question, std::span<const EngineView> engines) override {
    const auto [least, most] = std::ranges::minmax(engines, {}, &EngineView::num_requests);
    const size_t lightest = least_loaded(question, engines);
    if (is_imbalanced(least.num_requests, most.num_requests)) return lightest;
    size_t best = lightest;
    for (size_t i = 0; i < engines.size(); ++i) {
      if (engines[i].num_requests > least.num_requests + kLoadDifference) continue;
      const int32_t champion = known(question, best), challenger = known(question, i);
      if (challenger > champion ||
          (challenger == champion && engines[i].num_requests < engines[best].num_requests))
        best = i;
    }
    return best;
  }

 private:
  static constexpr uint64_t kLoadDifference = 32;  // requests
  static constexpr double kLoadRatio = 1.1;
  static bool is_imbalanced(uint64_t least, uint64_t most) {
    return most - least > kLoadDifference &&
           static_cast<double>(most) > kLoadRatio * static_cast<double>(least);
  }
  static int32_t known(const RouteQuestion& question, size_t index) {
    return index < question.num_known_tokens.size() ? question.num_known_tokens[index] : 0;
  }
};

template <class P>
RoutePolicyContract policy(std::string name, std::string doc) {
  return {std::move(name), std::move(doc), [] { return std::make_unique<P>(); }};
}

}  // namespace

std::vector<RoutePolicyContract> route_policies() {
  return {
      policy<StickyLeastLoaded>("sticky_least_loaded",
                                "where the session's prefix is, else the least loaded"),
      policy<LeastLoaded>("least_loaded", "the fewest requests, wherever the session was"),
      policy<RoundRobin>("round_robin", "one engine after the other"),
      policy<Random>("random", "any engine, with equal probability"),
      policy<PowerOfTwo>("power_of_two", "the engine with fewer requests of two random ones"),
      policy<ConsistentHash>("consistent_hash", "always the same engine for a session"),
      policy<Cost>("cost", "the fewest tokens still to compute"),
      policy<CacheAware>(
          "cache_aware",
          "the engine with the longest prefix of the prompt, unless loads differ much"),
  };
}

std::unique_ptr<RoutePolicy> make_route_policy(std::string_view name,
                                               const std::vector<RoutePolicyContract>& policies) {
  for (const RoutePolicyContract& policy : policies)
    if (policy.name == name) return policy.make();
  return nullptr;
}

}  // namespace primerl
