#include "runtime/outside/outside_workers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <deque>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "graph/base/real_clock.h"
#include "runtime/outside/pool_workers.h"

namespace primerl {
namespace {

// Workers may finish what they do, for example remove a temporary folder.
constexpr Duration kGrace = Duration::seconds(1);
constexpr int kGracePollMs = 10;
constexpr int kPollMsMax = 60'000;

class OutsideWorkers final : public Outside {
 public:
  explicit OutsideWorkers(OutsideWorkersSetup setup)
      : setup_(std::move(setup)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    CHECK(event_.get() >= 0, "no eventfd");
    thread_ = std::thread([this] { run(); });
  }
  ~OutsideWorkers() override {
    is_ending_ = true;
    notify();
    thread_.join();
  }

  Status ask(OutsideCall call) override {
    if (is_stopped_) return ok();
    if (open_.size() >= kOutsideCallsMax)
      return error(Code::kExhausted, "{} calls wait for an answer from outside already",
                   open_.size());
    open_.insert(call.id);
    {
      const std::lock_guard lock(mutex_);
      orders_.push_back({std::move(call), false});
    }
    notify();
    return ok();
  }

  void forget(uint32_t pool, uint64_t session) override {
    if (is_stopped_) return;
    OutsideCall call;
    call.pool = pool;
    call.session = session;
    {
      const std::lock_guard lock(mutex_);
      orders_.push_back({std::move(call), true});
    }
    notify();
  }

  std::vector<OutsideAnswer> receive_answers() override {
    std::vector<OutsideAnswer> received;
    const std::lock_guard lock(mutex_);
    while (!answers_.empty() && received.size() < kOutsideAnswersMax) {
      open_.erase(answers_.front().id);
      received.push_back(std::move(answers_.front()));
      answers_.pop_front();
    }
    has_work_ = !answers_.empty() || !fault_.ok();
    return received;
  }

  void stop() override {
    is_stopped_ = true;
    open_.clear();
    const std::lock_guard lock(mutex_);
    answers_.clear();
    has_work_ = false;
  }

  void set_wake(std::function<void()> wake) override {
    const std::lock_guard lock(mutex_);
    wake_ = std::move(wake);
  }

  bool has_work() const override { return !is_stopped_ && has_work_; }
  /// The group fails if workers cannot be started.
  Status step() override {
    const std::lock_guard lock(mutex_);
    return fault_;
  }
  std::string describe() const override {
    return fmt::format("{} calls outside without an answer", open_.size());
  }

 private:
  struct Order {
    OutsideCall call;
    bool is_end = false;  // the session has ended
  };

  void notify() const {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(event_.get(), &one, sizeof one);
  }

  void add_answer(OutsideAnswer answer) {
    std::function<void()> wake;
    {
      const std::lock_guard lock(mutex_);
      if (is_stopped_) return;
      if (answers_.empty()) wake = wake_;
      answers_.push_back(std::move(answer));
      has_work_ = true;
    }
    if (wake) wake();
  }

  void fail(Error why) {
    std::function<void()> wake;
    {
      const std::lock_guard lock(mutex_);
      if (!fault_.ok() || is_stopped_) return;
      fault_ = std::move(why);
      has_failed_ = true;
      has_work_ = true;
      wake = wake_;
    }
    if (wake) wake();
  }

  // On the I/O thread.

  void run() {
    // A worker that has closed its input must not end this process.
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::deque<PoolWorkers> pools;
    for (const OutsidePool& pool : setup_.spec.pools)
      pools.emplace_back(
          pool, [this](OutsideAnswer answer) { add_answer(std::move(answer)); },
          [this](std::string_view line) {
            if (setup_.log) setup_.log(line);
          });
    while (!is_ending_) {
      const Time now = steady_now();
      if (!has_failed_)
        for (PoolWorkers& pool : pools)
          if (Status started = pool.start_missing(now); !started.ok())
            fail(std::move(started).error());
      apply_orders(pools);
      if (is_ending_) break;  // apply_orders() may have read its notification
      if (!wait(pools)) continue;
      for (PoolWorkers& pool : pools) pool.turn(steady_now());
    }
    for (PoolWorkers& pool : pools) pool.close_inputs();
    const Time until = steady_now() + kGrace;
    while (steady_now() < until && !std::all_of(pools.begin(), pools.end(), [](PoolWorkers& pool) {
             return pool.have_all_ended();
           }))
      ::poll(nullptr, 0, kGracePollMs);
  }

  void apply_orders(std::deque<PoolWorkers>& pools) {
    uint64_t count = 0;
    [[maybe_unused]] const auto size = ::read(event_.get(), &count, sizeof count);
    std::vector<Order> orders;
    {
      const std::lock_guard lock(mutex_);
      orders.swap(orders_);
    }
    for (Order& order : orders) {
      PoolWorkers& pool = pools.at(order.call.pool);
      if (order.is_end)
        pool.forget(order.call.session);
      else
        pool.ask(std::move(order.call), steady_now());
    }
  }

  /// Waits for input, an order or a deadline.
  bool wait(const std::deque<PoolWorkers>& pools) {
    std::vector<pollfd> polls = {{event_.get(), POLLIN, 0}};
    std::optional<Time> next;
    for (const PoolWorkers& pool : pools) {
      pool.add_polls(polls);
      if (has_failed_) continue;
      if (const auto at = pool.next_deadline()) next = next ? std::min(*next, *at) : *at;
    }
    int timeout = kPollMsMax;
    if (next) {
      const int64_t left = (*next - steady_now()).to_nanoseconds() / 1'000'000 + 1;
      timeout = static_cast<int>(std::clamp<int64_t>(left, 1, kPollMsMax));
    }
    return ::poll(polls.data(), polls.size(), timeout) >= 0;
  }

  const OutsideWorkersSetup setup_;
  const Descriptor event_;
  std::atomic<bool> is_ending_{false};
  std::atomic<bool> is_stopped_{false};
  std::atomic<bool> has_work_{false};
  // Used by the group's thread.
  std::set<uint64_t> open_;  // calls whose answer was not received
  // Guarded by mutex_.
  std::mutex mutex_;
  std::vector<Order> orders_;
  std::deque<OutsideAnswer> answers_;
  std::function<void()> wake_;
  Status fault_;
  // Used by the I/O thread.
  bool has_failed_ = false;
  std::thread thread_;
};

}  // namespace

std::shared_ptr<Outside> make_outside_workers(OutsideWorkersSetup setup) {
  return std::make_unique<OutsideWorkers>(std::move(setup));
}

}  // namespace primerl
