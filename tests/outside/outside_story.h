/// An Outside with real workers: the test asks, and waits until the answer arrives.
#pragma once

#include <gmock/gmock.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>

#include "graph/base/real_clock.h"
#include "runtime/outside/outside_workers.h"
#include "tests/base/patience.h"

namespace primerl {

struct OutsideStory : ::testing::Test {
  OutsideStory() { std::filesystem::create_directories(folder); }
  ~OutsideStory() override {
    outside.reset();
    std::filesystem::remove_all(folder);
  }

  std::string write(const std::string& name, const std::string& text) {
    const std::string file = (folder / name).string();
    std::ofstream(file, std::ios::binary) << text;
    return file;
  }
  /// Starts workers of `pool`, with time limits that a test can wait for.
  void start(OutsidePool pool) {
    pool.name = "reward 'test'";
    OutsideWorkersSetup setup;
    setup.spec.pools = {std::move(pool)};
    setup.log = [this](std::string_view line) {
      const std::lock_guard lock(mutex);
      log.emplace_back(line);
    };
    use(make_outside_workers(std::move(setup)));
  }
  void use(std::shared_ptr<Outside> made) {
    outside = std::move(made);
    outside->set_wake([this] {
      const std::lock_guard lock(mutex);
      has_news = true;
      changed.notify_all();
    });
  }
  void ask(uint64_t id, const std::string& body, uint64_t session = 0, bool is_whole = true,
           bool is_replay = false) {
    OutsideCall call;
    call.id = id;
    call.session = session;
    call.is_whole = is_whole;
    call.is_replay = is_replay;
    call.body = body;
    ASSERT_TRUE(outside->ask(std::move(call)).ok());
  }
  /// Waits for the answer to a call.
  OutsideAnswer answer_to(uint64_t id) {
    const auto until = deadline_after(kPatience);
    while (!known.contains(id)) {
      for (auto& answer : outside->receive_answers()) {
        EXPECT_FALSE(known.contains(answer.id)) << "answered twice";
        known[answer.id] = std::move(answer);
      }
      if (known.contains(id)) break;
      if (!outside->step().ok()) {
        ADD_FAILURE() << outside->step().error().text();
        return {};
      }
      std::unique_lock lock(mutex);
      if (!changed.wait_until(lock, until, [this] { return has_news; })) {
        ADD_FAILURE() << "no answer to call " << id << "; the log:\n"
                      << fmt::format("{}", fmt::join(log, "\n"));
        return {};
      }
      has_news = false;
    }
    return known[id];
  }
  /// Waits until the workers cannot be used; the reason.
  std::string failure() {
    const auto until = deadline_after(kPatience);
    while (outside->step().ok()) {
      std::unique_lock lock(mutex);
      if (!changed.wait_until(lock, until, [this] { return has_news; })) return "";
      has_news = false;
    }
    return outside->step().error().text();
  }
  std::string log_text() {
    const std::lock_guard lock(mutex);
    return fmt::format("{}", fmt::join(log, "\n"));
  }

  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() /
      fmt::format("outside_{}_{}", ::getpid(),
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
  std::mutex mutex;
  std::condition_variable changed;
  bool has_news = false;
  std::vector<std::string> log;
  std::map<uint64_t, OutsideAnswer> known;
  std::shared_ptr<Outside> outside;
};

}  // namespace primerl
