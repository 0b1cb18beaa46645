/// WeightStreams: joins the weight channels of a process (kernels/weights/stream_channel.h) to its
/// connections (runtime/worker/peer_connections.h): each channel is the stream with the number of
/// its resource.
///
/// Threads: add() from whichever thread makes the channel, the rest as StreamEnds says. Frames for
/// a channel that is not made yet wait, bounded: until they get an answer peers send only requests.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/weights/stream_channel.h"
#include "runtime/worker/peer_connections.h"

namespace primerl {

class WeightStreams final : public StreamEnds {
 public:
  /// From now on frames go between the channel and these processes. Call
  /// PeerConnections::streams_ready() after it.
  void add(uint32_t stream, std::vector<ProcessId> peers, std::shared_ptr<StreamChannel> channel);

  // StreamEnds
  bool next(ProcessId to, uint32_t incarnation, StreamFrame& frame) override;
  void arrive(ProcessId from, uint32_t incarnation, const StreamFrame& frame) override;
  void ended(ProcessId peer, uint32_t incarnation) override;

 private:
  struct Entry {
    uint32_t stream = 0;
    std::vector<ProcessId> peers;  // ascending
    std::shared_ptr<StreamChannel> channel;
  };
  struct Early {
    uint32_t stream = 0;
    ProcessId from;
    uint32_t incarnation = 0;
    PeerFrame frame;
  };

  std::mutex mutex_;  // guards what follows
  std::vector<Entry> entries_;
  std::vector<Early> early_;
};

}  // namespace primerl
