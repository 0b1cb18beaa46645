/// WorkerTrace: the trace of one process of a run, in `trace/` of the run folder. Opened before the
/// executor is made, receives every step of its actor groups, closed when they have ended.
///
/// A finished step is in the trace before its messages leave, so after `kill -9` the trace has
/// every finished step. At the level `ring` nothing is written until the run fails, a CHECK fails,
/// a fatal signal arrives or a dump is requested (ring_requests.h).
///
/// Threads: observer() is used by the thread of every actor group. The rest by one thread, unless a
/// comment says otherwise.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec/executor.h"
#include "runtime/trace/cut_file.h"
#include "runtime/trace/record/recorder.h"

namespace primerl {

class RingRequests;

class WorkerTrace {
 public:
  struct Setup {
    std::shared_ptr<const Plan> plan;
    ProcessId process;
    uint32_t incarnation = 1;
    std::filesystem::path run_folder;       // with its run.json
    std::vector<std::string> resumed_from;  // checkpoint folders by tenant slot
    std::string recovers;                   // as in TraceCatalog
    /// As in TraceCatalog; none: the present sizes of the files in the run folder.
    std::optional<std::vector<std::pair<std::string, uint64_t>>> bytes_before;
    /// As in TraceCatalog: zero_ns and wall_zero_seconds of the followed record, whose clock
    /// continues; none: now.
    std::optional<std::pair<int64_t, double>> zero;
  };
  /// Null when the graph records nothing. kIo when the trace cannot be written. The signal of
  /// RingRequests must be blocked in all threads.
  static Result<std::unique_ptr<WorkerTrace>> open(const Setup& setup);
  WorkerTrace(const WorkerTrace&) = delete;
  WorkerTrace& operator=(const WorkerTrace&) = delete;
  ~WorkerTrace();

  DeliveryObserver& observer() { return *recorder_; }
  /// Wraps `make`: its resources write their answers into the trace.
  ResourceFactory recording(ResourceFactory make);
  /// Whether the run can be resumed from cuts. Not from a ring. And not if no tenant writes a
  /// checkpoint before its end, because then its learner starts from the beginning.
  bool makes_cuts() const { return makes_cuts_; }
  /// The head of this process's cuts, without the fields that differ between cuts.
  const CutHead& cut_head() const { return cut_head_; }
  /// Number of the segment that is written now; any thread.
  uint64_t segment() const;
  /// Segments before this one may be removed once the trace is larger than bytes_max; any thread.
  void keep_from(uint64_t segment) { *keep_from_ = segment; }
  /// Why recording has stopped; an error is permanent.
  Status fault() const;

  /// The run is being stopped: no group waits for space on a full disk any more. Any thread.
  void stop_waiting() { writer_->stop_waiting(); }

  /// Call when all actor groups have ended. Writes the end of the trace; for a ring, the whole ring
  /// if the run failed.
  Status close(bool run_failed);
  /// The thread of an actor group did not return and may still record: keeps the trace without an
  /// end frame.
  void leave(bool run_failed);
  /// Warnings for a person about a trace that is incomplete; empty when it is complete.
  std::vector<std::string> warnings() const;

 private:
  WorkerTrace(std::shared_ptr<std::atomic<uint64_t>> keep_from,
              std::unique_ptr<SegmentWriter> writer, const TraceCatalog& catalog);
  Status become_ring(const SegmentWriterOptions& options);

  const std::shared_ptr<std::atomic<uint64_t>> keep_from_;  // the writer's thread reads it too
  const std::unique_ptr<SegmentWriter> writer_;
  const std::unique_ptr<Recorder> recorder_;
  bool is_ring_ = false;
  bool makes_cuts_ = false;
  CutHead cut_head_;
  std::unique_ptr<RingRequests> requests_;  // for a ring, while it records
};

}  // namespace primerl
