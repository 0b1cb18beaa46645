#include "runtime/replay/checked_engine.h"

#include <algorithm>
#include <utility>

#include "runtime/replay/traced_engine.h"

namespace primerl {
namespace {

std::string how(const Status& status) { return status.ok() ? "accepted" : status.error().text(); }

std::vector<float> logprobs_of(const std::vector<TokenLogprob>& list) {
  std::vector<float> all;
  for (const TokenLogprob& one : list) all.push_back(one.logprob);
  return all;
}

/// Describes the first difference between the tokens of two ends.
std::string token_difference(const FinishEvent& then, const FinishEvent& now) {
  const auto [a, b] = std::ranges::mismatch(then.tokens, now.tokens);
  const auto index = static_cast<size_t>(a - then.tokens.begin());
  if (a == then.tokens.end() || b == now.tokens.end())
    return fmt::format("has {} tokens, recorded {}", now.tokens.size(), then.tokens.size());
  const auto at = [&](const FinishEvent& of) {
    return index < of.logprobs.size() ? fmt::format("{}", of.logprobs[index]) : "unknown";
  };
  return fmt::format(
      "token {} is {} (log-probability {}), recorded {} ({}); on a device weights and logits "
      "repeat "
      "to the bit only with CUBLAS_WORKSPACE_CONFIG=:4096:8, in the recorded run as well",
      index, *b, at(now), *a, at(then));
}

class CheckedEngine final : public TracedEngine {
 public:
  explicit CheckedEngine(CheckedEngineSetup setup)
      : TracedEngine(setup.next), setup_(std::move(setup)) {}

  Status submit(SequenceRequest request) override {
    const SequenceId id = request.id;
    const Status now = engine().submit(request);
    Status then = TracedEngine::submit(std::move(request));
    compare("submit", id, then, now);
    return then;
  }
  Status take_over(SequenceId id) override {
    const Status now = engine().take_over(id);
    Status then = TracedEngine::take_over(id);
    compare("take_over", id, then, now);
    return then;
  }
  void abort(SequenceId id) override { engine().abort(id); }
  void expire(SequenceId id) override { engine().expire(id); }

  std::vector<PrefillEvent> take_prefilled() override {
    const auto now = engine().take_prefilled();
    auto then = TracedEngine::take_prefilled();
    const auto are_equal = [](const PrefillEvent& a, const PrefillEvent& b) {
      return a.id == b.id && a.num_cached_tokens == b.num_cached_tokens;
    };
    if (!std::ranges::equal(then, now, are_equal))
      part(fmt::format("the engine completed {} prompts in this step, recorded {}, or others",
                       now.size(), then.size()));
    return then;
  }

  std::vector<FinishEvent> take_finished() override {
    const auto now = engine().take_finished();
    auto then = TracedEngine::take_finished();
    if (then.size() != now.size())
      part(fmt::format("{} sequences ended in this step, recorded {}", now.size(), then.size()));
    for (size_t i = 0; i < std::min(then.size(), now.size()); ++i) compare(then[i], now[i]);
    return then;
  }

  Result<uint64_t> apply(const WeightSnapshot& snapshot) override {
    auto then = TracedEngine::apply(snapshot);
    if (then.ok()) apply_now(snapshot);
    return then;
  }
  Result<std::optional<uint64_t>> apply_prepared(
      const std::shared_ptr<const WeightSnapshot>& snapshot) override {
    auto then = TracedEngine::apply_prepared(snapshot);
    if (then.ok() && then->has_value()) apply_now(*snapshot);
    return then;
  }

  void drop(WeightsKey key) override { engine().drop(key); }
  void set_share(TenantSlot tenant, double share) override { engine().set_share(tenant, share); }
  void set_paused(bool is_paused) override { engine().set_paused(is_paused); }
  WeightManifest manifest() const override { return engine().manifest(); }
  std::string describe() const override { return engine().describe(); }
  Status step() override { return engine().step(); }
  bool has_work() const override { return engine().has_work(); }
  Duration take_cost() override { return engine().take_cost(); }

 private:
  Engine& engine() const { return *setup_.engine; }

  void part(std::string what) {
    if (!std::exchange(has_parted_, true)) setup_.on_divergence(std::move(what));
  }

  void compare(std::string_view call, SequenceId id, const Status& then, const Status& now) {
    if (then.ok() != now.ok())
      part(fmt::format("{} of sequence {}: {}, recorded: {}", call, id, how(now), how(then)));
  }

  void compare(const FinishEvent& then, const FinishEvent& now) {
    if (has_parted_) return;
    const auto differs = [&](const std::string& what) {
      part(fmt::format("sequence {} {}", then.id, what));
    };
    if (then.id != now.id) return part(fmt::format("{} ended, recorded {}", now.id, then.id));
    if (then.tokens != now.tokens) return differs(token_difference(then, now));
    if (then.reason != now.reason)
      return differs(fmt::format("ended as '{}' {}, recorded as '{}'", to_string(now.reason),
                                 now.detail, to_string(then.reason)));
    double largest = 0;
    const double most = setup_.tolerance.logprob;
    for (const std::string& what :
         {first_large_difference(then.logprobs, now.logprobs, most, largest),
          first_large_difference(then.prompt_logprobs, now.prompt_logprobs, most, largest),
          first_large_difference(logprobs_of(then.top_logprobs), logprobs_of(now.top_logprobs),
                                 most, largest),
          first_large_difference(logprobs_of(then.prompt_top_logprobs),
                                 logprobs_of(now.prompt_top_logprobs), most, largest)})
      if (!what.empty())
        return differs(
            fmt::format("has log-probabilities further than {} from the recorded ones: "
                        "{}",
                        most, what));
    if (setup_.near != nullptr) setup_.near->add_logprobs(then.logprobs.size(), largest);
  }

  void apply_now(const WeightSnapshot& snapshot) {
    if (const auto now = engine().apply(snapshot); !now.ok())
      part(fmt::format("version {} was applied, now it is refused: {}", snapshot.version,
                       now.error().text()));
  }

  const CheckedEngineSetup setup_;
  bool has_parted_ = false;
};

}  // namespace

std::shared_ptr<Engine> make_checked_engine(CheckedEngineSetup setup) {
  return std::make_unique<CheckedEngine>(std::move(setup));
}

}  // namespace primerl
