/// WeightLinks: joins the weight channels of a process (kernels/weights/link_channel.h) to its
/// links (runtime/worker/process_links.h): each channel is the stream with the number of its
/// resource.
///
/// Threads: add() from whichever thread makes the channel, the rest as StreamEnds says. What comes
/// for a channel that is not there yet waits, bounded: peers only ask until they are answered.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/weights/link_channel.h"
#include "runtime/worker/process_links.h"

namespace primerl {

class WeightLinks final : public StreamEnds {
 public:
  /// From now on frames go between the channel and these processes. Call
  /// ProcessLinks::streams_ready() after it.
  void add(uint32_t stream, std::vector<ProcessId> peers, std::shared_ptr<LinkChannel> channel);

  // StreamEnds
  bool next(ProcessId to, uint32_t epoch, StreamFrame& frame) override;
  void arrive(ProcessId from, uint32_t epoch, const StreamFrame& frame) override;
  void ended(ProcessId peer, uint32_t epoch) override;

 private:
  struct Entry {
    uint32_t stream = 0;
    std::vector<ProcessId> peers;  // ascending
    std::shared_ptr<LinkChannel> channel;
  };
  struct Early {
    uint32_t stream = 0;
    ProcessId from;
    uint32_t epoch = 0;
    LinkFrame frame;
  };

  std::mutex mutex_;  // guards what follows
  std::vector<Entry> entries_;
  std::vector<Early> early_;
};

}  // namespace primerl
