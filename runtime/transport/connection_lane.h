/// ConnectionLane: one of the two lanes of a connection, each with its own sequence numbers, in
/// both directions. Keeps sent frames until they are acknowledged, limits unacknowledged frames to
/// a window, and detects duplicates and gaps among arrivals.
///
/// Not thread-safe: used by the I/O thread only. Sequences count from 1; 0 means none yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

#include "graph/base/blob.h"
#include "runtime/wire/peer_frame.h"

namespace primerl {

/// A numbered frame without its header. Both parts are shared, so resending copies nothing.
struct LaneFrame {
  PeerFrameKind kind = PeerFrameKind::kBatches;
  Blob head;  // follows the header in the first part
  Blob data;  // a separate part; may be empty
  bool has_hash = false;
  uint64_t hash = 0;  // frame_payload_hash(), computed when the frame is sent for the first time
  uint64_t num_bytes() const { return head.size() + data.size(); }
};

class ConnectionLane {
 public:
  explicit ConnectionLane(uint32_t window) : window_(window) {}

  // Sending -------------------------------------------------------------------------------------
  /// Returns the sequence number of the frame.
  uint64_t push(LaneFrame frame);
  /// The next frame to send and its number. Null: all frames were sent, or the window is full.
  LaneFrame* next(uint64_t& sequence);
  bool has_next() const;
  /// The peer has received everything up to `sequence`. False: `sequence` was never sent.
  bool acknowledge(uint64_t sequence);
  /// Resends unacknowledged frames after `sequence`. False: `sequence` was never sent.
  bool rewind(uint64_t sequence);
  /// `sequence` could not be sent: next() returns it again.
  void retry(uint64_t sequence) { cursor_ = std::min(cursor_, sequence); }

  uint64_t acknowledged() const { return base_ - 1; }
  bool has_unanswered() const { return cursor_ > base_; }
  uint64_t num_sent() const { return num_sent_; }
  uint64_t num_resent() const { return num_resent_; }

  // Receiving -----------------------------------------------------------------------------------
  /// kNone: it is the next number. kDuplicate, kGap: it is not.
  FrameRefusal classify(uint64_t sequence) const;
  void accept() { ++received_; }
  uint64_t received() const { return received_; }

 private:
  const uint32_t window_;
  std::deque<LaneFrame> frames_;  // frames with numbers base_, base_ + 1, ...
  uint64_t base_ = 1;             // the oldest unacknowledged number
  uint64_t cursor_ = 1;           // the next number to send
  uint64_t sent_max_ = 0;
  uint64_t num_sent_ = 0;
  uint64_t num_resent_ = 0;
  uint64_t received_ = 0;
};

}  // namespace primerl
