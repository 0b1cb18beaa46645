/// Requests from other processes for a snapshot of a flight recorder: by SIGUSR1, which
/// `primerl-graph trace dump` sends.
///
/// The recording process keeps `<process>.<incarnation>.live` in the folder of its trace, with its
/// process id in it and a lock (flock) on it: a locked file belongs to a live recorder, even if
/// process ids are reused.
///
/// There is no signal handler: SIGUSR1 is blocked in every thread and read from a signalfd by one
/// thread that may lock, allocate and write. The run continues meanwhile.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/result.h"
#include "runtime/trace/record/segment_writer.h"

namespace primerl {

/// Blocks it for the calling thread and the threads it starts: call it before starting any.
void block_dump_signal();

/// The side of the recording process. Owned by the owner of the writer, which outlives it. Its
/// thread calls SegmentWriter::snapshot() for each request; concurrent requests may share one.
class RingRequests {
 public:
  /// Makes the folder when it is not there. All threads of the process must have the signal
  /// blocked, also the thread of the writer: a thread without it would be killed by the signal.
  static Result<std::unique_ptr<RingRequests>> open(SegmentWriter& writer,
                                                    const std::filesystem::path& folder,
                                                    const std::string& process,
                                                    uint32_t incarnation);
  RingRequests(const RingRequests&) = delete;
  RingRequests& operator=(const RingRequests&) = delete;
  /// No snapshot is taken afterwards. Removes the file, and the folder when nothing else is in it.
  ~RingRequests();

 private:
  RingRequests(SegmentWriter& writer, std::filesystem::path file, int lock, int signals, int stop);
  void serve();

  SegmentWriter& writer_;
  const std::filesystem::path file_;
  const int lock_, signals_, stop_;  // descriptors
  std::thread thread_;
};

/// One process that has answered.
struct DumpedProcess {
  std::string process;
  uint32_t incarnation = 0;
  pid_t pid = 0;
  RingSnapshot snapshot;
};

/// Asks every live recorder of a trace's folder, all at once, and waits until each has written.
/// kNotFound when there is none; kDeadline when one does not answer in time; kUnavailable when one
/// ended instead, runs on another machine, or could not write.
Result<std::vector<DumpedProcess>> request_dump(const std::filesystem::path& folder,
                                                Duration wait_max);

}  // namespace primerl
