/// StreamChannel: one process's end of a weight channel whose versions travel over the links
/// between processes, on one machine or several. It knows no link: whoever owns them carries
/// frames.
///
///   publisher's process                           every other process of the channel
///   publish() -> [ StreamChannel ] -- next() ~~~~~~~~~~> handle() --> [ StreamChannel ] -> fetch()
///                     handle() <~~~~~~~~~~~~~~~~~~~~~~ next()
///
/// Every end asks every other for the newest versions above those that it has; the one that
/// publishes answers as soon as there is one, so that bytes move while engines generate. publish()
/// waits for nobody. fetch() waits for nobody either: a version that has not come yet is
/// kUnavailable, ask again. A slow end gets the newest when it is ready for another and skips what
/// lies between; one that comes late or again gets the newest.
///
/// Memory: a publisher keeps `versions_max` versions of each key and those that are under way, at
/// most one per peer; a receiver `versions_max` of each key and the one that comes. Chunks are
/// views: what is under way is bounded by how many frames the owner of the links takes.
///
/// All frames of a peer's incarnation arrive, in order, or none any more (peer_ended). Thread-safe;
/// calls for one peer come one at a time.
#pragma once

#include "kernels/weights/channel.h"
#include "kernels/weights/stream.h"

namespace primerl {

/// What an offer may carry of names and shapes: it travels as one frame.
inline constexpr size_t kStreamManifestBytesMax = size_t{8} << 20;

struct StreamChannelSetup {
  std::string resource;                    // the channel's name in the graph
  size_t versions_max = 2;                 // newest versions of a key kept, at least 1
  uint64_t bytes_max = uint64_t{1} << 40;  // largest version that is taken
  size_t chunk_bytes = size_t{512} << 10;  // 1..kStreamChunkBytesMax
  std::vector<std::string> names{};        // of peers, by number, for words
  std::function<void()> has_news{};        // next() may have something; not from within a call here
  std::function<void(std::string_view)> log{};  // what a person should know; may be null
};

class StreamChannel : public WeightChannel {
 public:
  /// What to send to incarnation `incarnation` of `peer`; nothing: until news, or its next frame.
  virtual std::optional<PeerFrame> next(uint32_t peer, uint32_t incarnation) = 0;
  virtual void handle(uint32_t peer, uint32_t incarnation, const PeerFrame& frame) = 0;
  /// It died: what was under way is dropped. What came whole stays.
  virtual void peer_ended(uint32_t peer, uint32_t incarnation) = 0;
};

std::shared_ptr<StreamChannel> make_stream_channel(StreamChannelSetup setup);

}  // namespace primerl
