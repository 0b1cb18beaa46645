/// An agent on its own thread, and control planes that connect to it.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/control/agent_client.h"
#include "runtime/control/agent_server.h"
#include "tests/base/patience.h"
#include "tests/store/scratch_folder.h"

namespace primerl {

inline const auto kNeverStops = [] { return false; };

/// Serves until it is stopped. The serving thread is the parent of the workers.
class Agent {
 public:
  explicit Agent(const std::filesystem::path& scratch, FrameKeys keys = {}, bool once = false,
                 std::function<void(const PrepareRun&)> look = {}) {
    AgentSettings settings;
    settings.listen = "tcp://127.0.0.1:0";
    settings.keys = std::move(keys);
    settings.site.sockets = scratch / "sockets";
    settings.greeting = own_greeting(5, "1.0");
    settings.once = once;
    settings.find_worker = []() -> Result<std::filesystem::path> {
      return std::filesystem::path(PRIMERL_LAUNCH_CHILD);
    };
    settings.check_run = [look](const PrepareRun& order) {
      if (look) look(order);
      return order.graph_hash == 11 ? ok() : Status(error(Code::kInvalid, "another graph"));
    };
    settings.say = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      said_ += line + "\n";
    };
    settings.num_signals = [this] { return num_signals_.load(); };
    auto server = AgentServer::open(std::move(settings));
    EXPECT_TRUE(server.ok()) << server.error().text();
    address_ = (*server)->address().substr(std::string("tcp://").size());
    thread_ = std::thread([this, served = std::move(*server)]() mutable {
      served->serve();
      num_refused_ = served->num_refused();
      served.reset();
    });
  }
  ~Agent() { stop(2); }
  void signal() { ++num_signals_; }
  /// Ends it; returns the number of messages that it has refused.
  uint64_t stop(int signals = 2) {
    num_signals_ += signals;
    if (thread_.joinable()) thread_.join();
    return num_refused_;
  }
  void wait() { thread_.join(); }
  const std::string& address() const { return address_; }
  std::string said() const {
    const std::lock_guard lock(mutex_);
    return said_;
  }

 private:
  std::string address_;
  std::atomic<int> num_signals_{0};
  std::atomic<uint64_t> num_refused_{0};
  mutable std::mutex mutex_;
  std::string said_;
  std::thread thread_;
};

class AgentServerTest : public testing::Test {
 protected:
  AgentServerTest() {
    std::filesystem::create_directories(folder_ / "logs");
    options_.log_file = folder_ / "logs" / "worker.stderr";
    options_.process = ProcessId(4);
  }
  Result<std::unique_ptr<AgentClient>> dial(const std::string& address, FrameKeys keys = {},
                                            AgentGreeting own = own_greeting(5, "1.0")) const {
    return AgentClient::open({"x", address, std::move(keys)}, own, Duration::seconds(30));
  }
  PrepareRun order(const std::string& run_id = "run1", uint32_t incarnation = 1) const {
    PrepareRun order;
    order.run_id = run_id;
    order.graph = "story";
    order.graph_hash = 11;
    order.incarnation = incarnation;
    order.run_folder = folder_.string();
    order.socket_folder = "links";
    order.dead_after_ms = 30'000;
    return order;
  }
  /// Greets, proves that the folder is shared, and sends the order.
  Status prepare(AgentClient& client, PrepareRun order, bool shows_folder = true) const {
    RETURN_IF_ERROR(client.wait_for_greeting(kPatience, false, kNeverStops));
    const auto file = folder_ / challenge_file(client.challenge());
    if (shows_folder) std::ofstream(file) << challenge_text(client.challenge());
    Status prepared = client.prepare(std::move(order), kPatience, kNeverStops);
    std::filesystem::remove(file);
    return prepared;
  }
  Result<std::unique_ptr<WorkerProcess>> launch(AgentClient& client, const std::string& what) {
    options_.arguments = {what};
    return client.launch(options_, inbox_);
  }
  void expect_hello() {
    auto event = inbox_->take(kPatience);
    while (event && !event->is_closed() && as_if<WorkerHello>(event->message) == nullptr)
      event = inbox_->take(kPatience);
    ASSERT_TRUE(event && !event->is_closed());
  }
  static std::string text_of(const Status& status) {
    return status.ok() ? "ok" : status.error().text();
  }

  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path() / "run";
  LaunchOptions options_;
  std::shared_ptr<ControlInbox> inbox_ = std::make_shared<ControlInbox>();
};

}  // namespace primerl
