/// A flight recorder asked for what it holds, from outside its process: by SIGUSR1, which
/// `primerl-graph trace dump` sends.
///
/// The process that records keeps `<process>.<incarnation>.live` in the folder of its trace, its id
/// in it and a lock (flock) on it, which nobody else can hold: whoever finds the file locked has
/// found a living recorder, and not one whose id now belongs to another process.
///
/// There is no signal handler: SIGUSR1 is blocked in every thread and taken from a descriptor by
/// one that may lock, ask for memory and write. The run goes on meanwhile.
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

/// For the calling thread and those it starts: call it before the first.
void block_dump_signal();

/// The side of the process that records. Owned by who owns the writer, which outlives it. Its
/// thread calls SegmentWriter::snapshot() for each request; several at once may become one.
class RingRequests {
 public:
  /// Makes the folder when it is not there. All threads of the process must have the signal
  /// blocked, that of the writer too: one that has not would die of it.
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

/// Asks every living recorder of a trace's folder, all at once, and waits until each has written.
/// kNotFound when none lives; kDeadline when one does not answer in time; kUnavailable when one
/// ended instead, runs on another machine, or could not write.
Result<std::vector<DumpedProcess>> request_dump(const std::filesystem::path& folder,
                                                Duration wait_max);

}  // namespace primerl
