#include "runtime/transport/connection_lane.h"

#include <algorithm>

namespace primerl {

uint64_t ConnectionLane::push(LaneFrame frame) {
  frames_.push_back(std::move(frame));
  return base_ + frames_.size() - 1;
}

bool ConnectionLane::has_next() const {
  return cursor_ < base_ + frames_.size() && cursor_ - base_ < window_;
}

LaneFrame* ConnectionLane::next(uint64_t& sequence) {
  if (!has_next()) return nullptr;
  LaneFrame& frame = frames_[cursor_ - base_];
  sequence = cursor_++;
  num_sent_ += 1;
  if (sequence <= sent_max_)
    num_resent_ += 1;
  else
    sent_max_ = sequence;
  if (!frame.has_hash) {
    frame.hash = frame_payload_hash(frame.head.bytes(), frame.data.bytes());
    frame.has_hash = true;
  }
  return &frame;
}

bool ConnectionLane::acknowledge(uint64_t sequence) {
  if (sequence > sent_max_) return false;
  while (base_ <= sequence) {
    frames_.pop_front();
    ++base_;
  }
  cursor_ = std::max(cursor_, base_);
  return true;
}

bool ConnectionLane::rewind(uint64_t sequence) {
  if (!acknowledge(sequence)) return false;
  cursor_ = std::min(cursor_, std::max(base_, sequence + 1));
  return true;
}

FrameRefusal ConnectionLane::classify(uint64_t sequence) const {
  if (sequence <= received_) return FrameRefusal::kDuplicate;
  return sequence == received_ + 1 ? FrameRefusal::kNone : FrameRefusal::kGap;
}

}  // namespace primerl
