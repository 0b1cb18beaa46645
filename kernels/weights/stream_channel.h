/// StreamChannel: one process's end of a weight channel whose versions travel over the links
/// between processes, on one machine or several. It does not know the links: their owner moves
/// frames.
///
///   publisher's process                           every other process of the channel
///   publish() -> [ StreamChannel ] -- next() ~~~~~~~~~~> handle() --> [ StreamChannel ] -> fetch()
///                     handle() <~~~~~~~~~~~~~~~~~~~~~~ next()
///
/// Every end asks every other for versions newer than its own. The publisher answers as soon as
/// there is one, so that bytes move while engines generate. publish() does not wait, and neither
/// does fetch(): a version that has not arrived is kUnavailable; call again. A slow end skips
/// versions: when it is ready it gets the newest. So does an end that starts late or restarts.
///
/// Memory: a publisher keeps `versions_max` versions of each key and those being sent, at most one
/// per peer. A receiver keeps `versions_max` of each key and the one being received. Chunks are
/// views: data in flight is bounded by the number of frames that the owner of the links accepts.
///
/// Frames of a peer's incarnation arrive in order and without gaps, until peer_ended().
/// Thread-safe; calls for one peer come one at a time.
#pragma once

#include "kernels/weights/channel.h"
#include "kernels/weights/stream.h"

namespace primerl {

/// Limit for names and shapes in an offer: it is sent as one frame.
inline constexpr size_t kStreamManifestBytesMax = size_t{8} << 20;

struct StreamChannelSetup {
  std::string resource;                    // the channel's name in the graph
  size_t versions_max = 2;                 // number of newest versions kept per key, at least 1
  uint64_t bytes_max = uint64_t{1} << 40;  // largest version that is accepted
  size_t chunk_bytes = size_t{512} << 10;  // 1..kStreamChunkBytesMax
  std::vector<std::string> names{};        // of peers, by number, for messages
  std::function<void()> has_news{};        // called when next() may have a frame; never from within
                                           // a call here
  std::function<void(std::string_view)> log{};  // messages for the user; may be null
};

class StreamChannel : public WeightChannel {
 public:
  /// The next frame for incarnation `incarnation` of `peer`; empty: none until has_news() or its
  /// next frame.
  virtual std::optional<PeerFrame> next(uint32_t peer, uint32_t incarnation) = 0;
  virtual void handle(uint32_t peer, uint32_t incarnation, const PeerFrame& frame) = 0;
  /// The peer died: incomplete transfers are dropped. Complete versions stay.
  virtual void peer_ended(uint32_t peer, uint32_t incarnation) = 0;
};

std::shared_ptr<StreamChannel> make_stream_channel(StreamChannelSetup setup);

}  // namespace primerl
