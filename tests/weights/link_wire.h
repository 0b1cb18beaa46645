/// Ends of a weight channel over links in one process, and the wire between them. Frames move only
/// when the test moves them, so a test decides which end is slow, dead or damaged.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/weights/stream_channel.h"

namespace primerl {

class ConnectionWire {
 public:
  /// A frame in flight; false: it is lost for good, which only a death explains.
  using OnFrame = std::function<bool(uint32_t from, uint32_t to, PeerFrame& frame)>;

  /// Adds the end with the next number. With `is_prompt` everything moves as soon as there is news.
  std::shared_ptr<StreamChannel> add(StreamChannelSetup setup, bool is_prompt = false) {
    if (is_prompt) setup.has_news = [this] { carry_all(); };
    ends_.push_back({make_stream_channel(std::move(setup)), 1});
    return ends_.back().channel;
  }

  /// Moves at most `frames_max` frames from one end to the other; returns their number.
  size_t carry(uint32_t from, uint32_t to, size_t frames_max = SIZE_MAX) {
    size_t count = 0;
    for (; count < frames_max; ++count) {
      auto frame = ends_[from].channel->next(to, ends_[to].incarnation);
      if (!frame) break;
      num_bytes += frame->body.size();
      if (on_frame == nullptr || on_frame(from, to, *frame))
        ends_[to].channel->handle(from, ends_[from].incarnation, *frame);
    }
    return count;
  }
  /// Moves frames until no end has any.
  void carry_all() {
    for (bool has_moved = true; has_moved;) {
      has_moved = false;
      for (uint32_t from = 0; from < ends_.size(); ++from)
        for (uint32_t to = 0; to < ends_.size(); ++to)
          if (from != to) has_moved = carry(from, to) > 0 || has_moved;
    }
  }
  /// The end dies and restarts as the next incarnation, with no state.
  std::shared_ptr<StreamChannel> restart(uint32_t number, StreamChannelSetup setup) {
    for (uint32_t other = 0; other < ends_.size(); ++other)
      if (other != number) ends_[other].channel->peer_ended(number, ends_[number].incarnation);
    ends_[number] = {make_stream_channel(std::move(setup)), ends_[number].incarnation + 1};
    return ends_[number].channel;
  }

  OnFrame on_frame;
  uint64_t num_bytes = 0;  // of the bodies that were given to the wire

 private:
  struct End {
    std::shared_ptr<StreamChannel> channel;
    uint32_t incarnation = 1;
  };
  std::vector<End> ends_;
};

}  // namespace primerl
