#include "runtime/outside/outside_pools.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace primerl {
namespace {

class OutsidePools final : public Outside {
 public:
  explicit OutsidePools(std::vector<std::shared_ptr<Outside>> of_pool)
      : of_pool_(std::move(of_pool)) {
    for (const auto& outside : of_pool_) {
      CHECK(outside != nullptr, "a pool without an Outside");
      if (std::ranges::find(all_, outside) == all_.end()) all_.push_back(outside);
    }
  }

  Status ask(OutsideCall call) override {
    if (call.pool >= of_pool_.size())
      return error(Code::kInvalid, "a call of pool {}, there are {}", call.pool, of_pool_.size());
    return of_pool_[call.pool]->ask(std::move(call));
  }
  void forget(uint32_t pool, uint64_t session) override {
    if (pool < of_pool_.size()) of_pool_[pool]->forget(pool, session);
  }
  /// Begins with another one each time, so that none waits for the others.
  std::vector<OutsideAnswer> receive_answers() override {
    std::vector<OutsideAnswer> received = std::exchange(left_, {});
    for (size_t i = 0; i < all_.size() && received.size() < kOutsideAnswersMax; ++i)
      std::ranges::move(all_[(first_ + i) % all_.size()]->receive_answers(),
                        std::back_inserter(received));
    if (!all_.empty()) first_ = (first_ + 1) % all_.size();
    if (received.size() > kOutsideAnswersMax) {
      const auto end = received.begin() + static_cast<std::ptrdiff_t>(kOutsideAnswersMax);
      left_.assign(std::make_move_iterator(end), std::make_move_iterator(received.end()));
      received.erase(end, received.end());
    }
    return received;
  }
  void stop() override {
    left_.clear();
    for (const auto& outside : all_) outside->stop();
  }
  void set_wake(std::function<void()> wake) override {
    for (const auto& outside : all_) outside->set_wake(wake);
  }
  Status step() override {
    for (const auto& outside : all_) RETURN_IF_ERROR(outside->step());
    return ok();
  }
  bool has_work() const override {
    return !left_.empty() ||
           std::ranges::any_of(all_, [](const auto& outside) { return outside->has_work(); });
  }
  std::string describe() const override {
    std::string text;
    for (const auto& outside : all_) {
      const std::string one = outside->describe();
      if (!one.empty()) text += (text.empty() ? "" : "; ") + one;
    }
    return text;
  }

 private:
  const std::vector<std::shared_ptr<Outside>> of_pool_;
  std::vector<std::shared_ptr<Outside>> all_;  // each once
  std::vector<OutsideAnswer> left_;            // more than one work call receives
  size_t first_ = 0;
};

}  // namespace

std::shared_ptr<Outside> make_outside_pools(std::vector<std::shared_ptr<Outside>> of_pool) {
  return std::make_shared<OutsidePools>(std::move(of_pool));
}

}  // namespace primerl
