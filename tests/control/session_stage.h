/// A session without processes: a run of four processes whose workers exist only in the test, its
/// folder, and a terminal that is a file. The test says what each process sends and how it ends.
/// Not thread-safe.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fcntl.h>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/backends/resource_catalog.h"
#include "runtime/control/run_monitor.h"
#include "runtime/control/status_publisher.h"
#include "runtime/wire/wire_message.h"
#include "tests/base/patience.h"
#include "tests/store/scratch_folder.h"

namespace primerl::testing {

/// The fate of one process, which the test decides, and the calls that the monitor made.
struct FakeFate {
  std::optional<ProcessExit> exit;  // none: it runs
  std::string last_words;
  std::vector<uint32_t> incarnations;  // of its launches
  int num_kills = 0;
  std::shared_ptr<ControlInbox> received = std::make_shared<ControlInbox>();
  std::unique_ptr<ControlChannel> channel;  // the worker's end
};

class FakeProcess final : public WorkerProcess {
 public:
  FakeProcess(ProcessId process, FakeFate& fate) : WorkerProcess(process), fate_(fate) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    control_ = ControlChannel::open(ends[0], process, std::make_shared<ControlInbox>()).value();
    fate.channel = ControlChannel::open(ends[1], process, fate.received).value();
  }
  pid_t pid() const override { return 4000 + static_cast<pid_t>(process().value); }
  std::optional<ProcessExit> poll() override { return fate_.exit; }
  Result<ProcessExit> wait(Duration timeout) override {
    if (fate_.exit) return *fate_.exit;
    return error(Code::kDeadline, "it has not ended within {}", to_string(timeout));
  }
  void kill() override {
    ++fate_.num_kills;
    if (!fate_.exit) fate_.exit = ProcessExit{-1, SIGKILL};
  }
  std::string last_words(size_t) const override { return fate_.last_words; }

 private:
  FakeFate& fate_;
};

/// A folder of a run, its publisher, and what both wrote.
class PublisherStage : public ::testing::Test {
 protected:
  PublisherStage() {
    const std::string file = std::string(PRIMERL_SOURCE_DIR) + "/tests/cli/graphs/split.toml";
    plan_ = load_graph(file, {}, full_catalog()).plan;
    folder_ = RunFolder::create(scratch_.path(), scratch_.path() / "run", "split", "now").value();
    terminal_fd_ = ::open((scratch_.path() / "terminal").c_str(),
                          O_CREAT | O_RDWR | O_APPEND | O_CLOEXEC, 0600);
    terminal_ = std::make_unique<StatusLine>(terminal_fd_, Terminal{});
    store_ = std::make_unique<StatusStore>(plan_, now_);
    publisher_ = std::make_unique<StatusPublisher>(*plan_, *folder_, resume_, *terminal_, *store_);
    start_ = {"1f2e", 1, 1000, 1000};
  }
  ~PublisherStage() override { ::close(terminal_fd_); }

  static std::string text_of(const std::filesystem::path& file) {
    std::ostringstream text;
    text << std::ifstream(file).rdbuf();
    return text.str();
  }
  std::string shown() const { return text_of(scratch_.path() / "terminal"); }
  const Json* fact(const std::string& name) const { return folder_->facts().find(name); }
  ProcessId process(std::string_view name) const {
    for (uint32_t i = 0; i < plan_->processes.size(); ++i)
      if (plan_->processes[i].name == name) return ProcessId(i);
    ADD_FAILURE() << "no process " << name;
    return {};
  }
  /// The worker of `name` reports a step of the tenant.
  void report_step(std::string_view name, int64_t step, const std::string& tenant = "main",
                   const MetricValues& values = {{"reward/all/mean", 0.5}}) {
    StepWriter writer(step_lines_file(folder_->logs_folder(), std::string(name)));
    std::filesystem::create_directories(folder_->logs_folder());
    const Status written =
        writer.append({tenant, step, start_.wall + 1.0 * static_cast<double>(step), values});
    ASSERT_TRUE(written.ok()) << written.error().text();
  }

  const ScratchFolder scratch_;
  std::shared_ptr<const Plan> plan_;
  std::unique_ptr<RunFolder> folder_;
  ResumeChoice resume_;
  int terminal_fd_ = -1;
  Time now_ = Time::from_nanoseconds(1'000'000'000'000);
  std::unique_ptr<StatusLine> terminal_;
  std::unique_ptr<StatusStore> store_;
  std::unique_ptr<StatusPublisher> publisher_;
  RunStart start_;
};

/// A monitor of processes that exist only here.
class MonitorStage : public PublisherStage, public WorkerStarter {
 protected:
  // WorkerStarter
  Result<std::unique_ptr<WorkerProcess>> launch(ProcessId process, uint32_t incarnation,
                                                bool follows_record) override {
    FakeFate& fate = fates_[process.index()];
    if (refuses_launch_) return error(Code::kExhausted, "the process table is full");
    fate.exit.reset();
    fate.incarnations.push_back(incarnation);
    followed_.push_back(follows_record);
    return std::unique_ptr<WorkerProcess>(std::make_unique<FakeProcess>(process, fate));
  }
  std::optional<Error> agent_fault() const override { return agent_fault_; }
  std::optional<std::string> agent_leaving() const override { return agent_leaving_; }

  /// Opens the publisher and starts all processes.
  void launch_all() {
    ASSERT_TRUE(publisher_->open(start_).ok());
    monitor_ = std::make_unique<RunMonitor>(
        *plan_, resume_, *folder_, start_, *this, *publisher_,
        [this](const std::string& id, const Json& answer) { answers_[id] = answer; },
        [this] { return now_; });
    const Status launched = monitor_->launch("/sockets");
    ASSERT_TRUE(launched.ok()) << launched.error().text();
  }
  template <Message T>
  void say(ProcessId from, T message) {
    monitor_->handle({from, Payload::of(std::move(message)), ok()});
  }
  void say_hello(ProcessId from, uint32_t incarnation = 1) {
    WorkerHello hello;
    hello.graph_hash = plan_->graph_hash;
    hello.types_hash = WireTypes(plan_->catalog->messages).hash();
    hello.process = plan_->process(from).name;
    hello.incarnation = incarnation;
    hello.addresses = {{"here", "there"}};
    say(from, hello);
  }
  /// From the launch to a run in which all processes are ready.
  void bring_up() {
    launch_all();
    for (uint32_t i = 0; i < fates_.size(); ++i) say_hello(ProcessId(i));
    for (uint32_t i = 0; i < fates_.size(); ++i) say(ProcessId(i), PeersConnected{});
    ASSERT_FALSE(monitor_->is_connecting());
    monitor_->on_launched();
    for (uint32_t i = 0; i < fates_.size(); ++i) say(ProcessId(i), GroupsReady{});
  }
  /// The control channel of a process closes, and it ends so.
  void end(ProcessId process, ProcessExit exit, Status closed = ok()) {
    fates_[process.index()].exit = std::move(exit);
    monitor_->handle({process, Payload(), std::move(closed)});
  }
  /// Time passes for everything but this process.
  void pass(Duration duration) {
    while (duration > Duration()) {
      const Duration part = std::min(duration, Duration::milliseconds(500));
      now_ = now_ + part;
      duration = duration - part;
      monitor_->tick();
    }
  }
  /// Names of the messages that a process was sent, up to and with the first `last`.
  std::vector<std::string> sent_until(ProcessId to, std::string_view last) {
    std::vector<std::string> names;
    while (true) {
      const auto event = fates_[to.index()].received->take(kPatience);
      if (!event || event->is_closed()) {
        ADD_FAILURE() << "it was sent no " << last;
        return names;
      }
      names.emplace_back(event->message.type->name);
      if (names.back() == last) return names;
    }
  }

  std::vector<FakeFate> fates_{4};  // by process
  std::vector<bool> followed_;      // of each launch
  bool refuses_launch_ = false;
  std::optional<Error> agent_fault_;
  std::optional<std::string> agent_leaving_;
  std::map<std::string, Json> answers_;
  std::unique_ptr<RunMonitor> monitor_;
};

}  // namespace primerl::testing
