/// The small actors, resources and host services of every executor's conformance suite, and a
/// function that makes a Plan from a graph's text.
///
///   source -> relay -> sink       numbers in order, `finish` when the sink has `count`
///   asker -> answerer ~~> asker   one question at a time
///   blob_source -> blob_sink ~~>  one large Blob to all, again when all have it
///
/// Actors write events into the file "journal" of the host services.
#pragma once

#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "graph/catalog.h"
#include "graph/plan.h"
#include "runtime/exec/executor.h"

namespace primerl {

struct Number {
  static constexpr std::string_view kName = "Number";
  static constexpr uint32_t kVersion = 1;
  uint64_t value = 0;
  template <class F>
  static void fields(F& f) {
    f("value", &Number::value);
  }
};

struct Reply {
  static constexpr std::string_view kName = "Reply";
  static constexpr uint32_t kVersion = 1;
  uint64_t value = 0;
  std::string fault;
  template <class F>
  static void fields(F& f) {
    f("value", &Reply::value)("fault", &Reply::fault);
  }
};

struct Package {
  static constexpr std::string_view kName = "Package";
  static constexpr uint32_t kVersion = 1;
  Blob content;
  uint64_t address = 0;  // of the content, where it was made
  template <class F>
  static void fields(F& f) {
    f("content", &Package::content)("address", &Package::address);
  }
};

/// Keeps everything in memory. Thread-safe.
class TestHostServices final : public ProcessServices, private RunFiles {
 public:
  RunFiles& files() override { return *this; }
  void publish_metrics(TenantSlot tenant, int64_t step, const MetricValues& values) override;
  void log(LogLevel level, std::string_view instance, std::string_view text) override;
  const ResumePoint* resume_point(TenantSlot) const override { return nullptr; }

  std::vector<std::string> journal() const;
  std::vector<std::string> logged() const;
  size_t count(std::string_view line) const;  // number of equal lines in the journal

 private:
  Status append_line(std::string_view file, std::string_view line) override;
  Result<std::filesystem::path> begin_checkpoint(TenantSlot, int64_t) override;
  Status commit_checkpoint(TenantSlot, int64_t, const Json&) override;

  mutable std::mutex mutex_;
  std::vector<std::string> journal_;
  std::vector<std::string> logged_;
};

/// Events of the test's resources; also the number of live actors.
struct ResourceDiary {
  std::mutex mutex;
  std::vector<std::string> events;  // "made engine", "destroyed engine"
  bool is_one_thread = true;        // whether every event of a resource was on the thread that made
                                    // it
  static ResourceDiary& get();
  void clear();
};
int64_t num_actors_alive();

/// Handlers wait at it until a test opens it; close() closes it again.
class Gate {
 public:
  static Gate& get();
  void close();
  void open();
  void pass();               // waits while closed
  void wait_for(int count);  // until this many handlers have reached the gate since close()

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = true;
  int num_arrived_ = 0;
};

const Catalog& conformance_catalog();

/// The plan of a graph; CHECKs that it has no findings. `graph` is the text after `[tenant.main]`,
/// `settings` the lines of `[graph]`.
std::shared_ptr<const Plan> conformance_plan(std::string_view graph, std::string_view settings = {},
                                             std::string_view tenant = {});
ResourceFactory conformance_factory();

}  // namespace primerl
