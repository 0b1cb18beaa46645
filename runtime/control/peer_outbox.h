/// PeerOutbox: the frames of one connection that wait to be sent, in order, and the time for which
/// its peer has been silent.
///
/// The caller limits the number of waiting frames: it adds bytes of channels only while has_room(),
/// and every other frame answers one order. Silence is counted in turns of the caller's loop, at
/// most kTurnMax per turn, because this process could not receive anything while it was itself
/// stopped. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "graph/base/clock.h"
#include "runtime/wire/agent_frames.h"
#include "runtime/wire/timeouts.h"

namespace primerl {

class PeerOutbox {
 public:
  static constexpr size_t kFramesMax = 64;  // waiting frames of channels
  static constexpr Duration kTurnMax = Duration::milliseconds(500);

  bool has_room() const { return waiting_.size() < kFramesMax; }
  bool empty() const { return waiting_.empty(); }
  Status put(const Payload& message) {
    ASSIGN_OR_RETURN(auto frame, frames_.encode(message));
    waiting_.push_back(std::move(frame));
    return ok();
  }
  /// Sends frames in order until `send` returns false.
  void flush(const std::function<bool(std::span<const std::byte>)>& send) {
    while (!waiting_.empty() && send(waiting_.front())) waiting_.pop_front();
  }
  Result<Payload> decode(std::span<const std::byte> frame) {
    silent_for_ = Duration();
    return frames_.decode(frame);
  }

  /// One turn of the loop, at `now`. True when the peer has been silent for `dead_after`.
  bool is_silent(Time now, Duration dead_after) {
    if (last_turn_ != Time()) silent_for_ = silent_for_ + std::min(now - last_turn_, kTurnMax);
    last_turn_ = now;
    return silent_for_ >= dead_after;
  }
  /// Whether a heartbeat must be sent now. False while frames wait to be sent.
  bool is_beat_due(Time now, Duration every) {
    if (!waiting_.empty() || now < next_beat_) return false;
    next_beat_ = now + every;
    return true;
  }

 private:
  AgentFrames frames_;
  std::deque<std::vector<std::byte>> waiting_;
  Duration silent_for_;
  Time last_turn_;
  Time next_beat_;
};

}  // namespace primerl
