/// WeightStreams: joins the weight channels of a process (kernels/weights/stream_channel.h) to its
/// connections (runtime/worker/peer_connections.h): each channel is the stream with the number of
/// its resource.
///
/// Threads: add() from the thread that makes the channel, the rest as for StreamEnds. Frames for a
/// channel that does not exist yet wait. Their number is bounded, because peers send only requests
/// until they get an answer.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "kernels/weights/stream_channel.h"
#include "runtime/worker/peer_connections.h"

namespace primerl {

class WeightStreams final : public StreamEnds {
 public:
  /// From now on the channel exchanges frames with these processes. Call
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
