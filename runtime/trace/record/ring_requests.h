/// Requests from other processes for a snapshot of a flight recorder: by SIGUSR1, which
/// `primerl-graph trace dump` sends.
///
/// The recording process keeps a file `<process>.<incarnation>.live` in its trace's folder. The
/// file has the process id, and the process holds a lock (flock) on it. So a locked file belongs to
/// a live recorder, even if process ids are reused.
///
/// The signal handler only counts the request in an eventfd. A thread that may lock, allocate and
/// write reads it. The run continues meanwhile. SIGUSR1 is not blocked, because programs that the
/// process starts would inherit the blocked signal.
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

/// Installs the handler of the signal, which would otherwise end the process. Call it at the start.
void take_dump_signals();

/// The side of the recording process. The writer must stay valid while it exists. Its thread calls
/// SegmentWriter::snapshot() for each request; concurrent requests may share one snapshot.
class RingRequests {
 public:
  /// Makes the folder if it does not exist. Call take_dump_signals() before.
  static Result<std::unique_ptr<RingRequests>> open(SegmentWriter& writer,
                                                    const std::filesystem::path& folder,
                                                    const std::string& process,
                                                    uint32_t incarnation);
  RingRequests(const RingRequests&) = delete;
  RingRequests& operator=(const RingRequests&) = delete;
  /// After it returns, no snapshot is made. Removes the file, and the folder if it is then empty.
  ~RingRequests();

 private:
  RingRequests(SegmentWriter& writer, std::filesystem::path file, int lock, int stop);
  void serve();

  SegmentWriter& writer_;
  const std::filesystem::path file_;
  const int lock_, stop_;  // descriptors
  std::thread thread_;
};

/// The answer of one process.
struct DumpedProcess {
  std::string process;
  uint32_t incarnation = 0;
  pid_t pid = 0;
  RingSnapshot snapshot;
};

/// Asks every live recorder of a trace's folder at the same time, and waits until each has written.
/// kNotFound without a live recorder. kDeadline when one does not answer in time. kUnavailable when
/// one ended instead, runs on another machine, or could not write.
Result<std::vector<DumpedProcess>> request_dump(const std::filesystem::path& folder,
                                                Duration wait_max);

}  // namespace primerl
