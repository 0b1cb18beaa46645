/// Requests from other processes for a snapshot of a flight recorder: by SIGUSR1, which
/// `primerl-graph trace dump` sends.
///
/// The recording process keeps `<process>.<incarnation>.live` in the folder of its trace, with its
/// process id in it and a lock (flock) on it: a locked file belongs to a live recorder, even if
/// process ids are reused.
///
/// The signal handler only counts the request, in an eventfd: a thread that may lock, allocate and
/// write reads it. The run continues meanwhile. SIGUSR1 is not blocked, because programs that the
/// process starts would inherit that.
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

/// Installs the handler of the signal, which would end the process otherwise: call it at the start.
void take_dump_signals();

/// The side of the recording process. Owned by the owner of the writer, which outlives it. Its
/// thread calls SegmentWriter::snapshot() for each request; concurrent requests may share one.
class RingRequests {
 public:
  /// Makes the folder when it is not there. take_dump_signals() was called before.
  static Result<std::unique_ptr<RingRequests>> open(SegmentWriter& writer,
                                                    const std::filesystem::path& folder,
                                                    const std::string& process,
                                                    uint32_t incarnation);
  RingRequests(const RingRequests&) = delete;
  RingRequests& operator=(const RingRequests&) = delete;
  /// No snapshot is taken afterwards. Removes the file, and the folder when nothing else is in it.
  ~RingRequests();

 private:
  RingRequests(SegmentWriter& writer, std::filesystem::path file, int lock, int stop);
  void serve();

  SegmentWriter& writer_;
  const std::filesystem::path file_;
  const int lock_, stop_;  // descriptors
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
