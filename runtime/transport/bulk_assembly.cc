#include "runtime/transport/bulk_assembly.h"

#include <cstring>

#include "graph/base/assert.h"

namespace primerl {
namespace {

Blob share(const ReceivedPart& piece) {
  const bool is_aligned = reinterpret_cast<uintptr_t>(piece.bytes.data()) % 8 == 0;
  if (piece.owner != nullptr && is_aligned) return Blob(piece.owner, piece.bytes);
  return Blob(std::vector<std::byte>(piece.bytes.begin(), piece.bytes.end()));
}

}  // namespace

FrameRefusal BulkAssembly::add(const ChunkHeader& header, const ReceivedPart& piece) {
  const bool is_first = filled_ == 0;
  if (header.object != num_complete_ || header.offset != filled_ || piece.bytes.empty())
    return FrameRefusal::kChunk;
  if (header.object_bytes > object_bytes_max_) return FrameRefusal::kTooLong;
  if (!is_first && header.object_bytes != object_bytes_) return FrameRefusal::kChunk;
  if (piece.bytes.size() > header.object_bytes - header.offset) return FrameRefusal::kChunk;
  if (is_first) {
    if (header.object_bytes > waiting_bytes_max_ - waiting_bytes_) return FrameRefusal::kTooLong;
    waiting_bytes_ += header.object_bytes;
    if (piece.bytes.size() == header.object_bytes) {
      complete_.push_back(share(piece));
      ++num_complete_;
      return FrameRefusal::kNone;
    }
    object_bytes_ = header.object_bytes;
    memory_ = std::make_shared_for_overwrite<std::byte[]>(object_bytes_);
  }
  std::memcpy(memory_.get() + filled_, piece.bytes.data(), piece.bytes.size());
  filled_ += piece.bytes.size();
  if (filled_ < object_bytes_) return FrameRefusal::kNone;
  const std::span<const std::byte> bytes(memory_.get(), object_bytes_);
  complete_.emplace_back(std::move(memory_), bytes);
  memory_.reset();
  filled_ = 0;
  ++num_complete_;
  return FrameRefusal::kNone;
}

FrameRefusal BulkAssembly::add(uint64_t object, Blob whole) {
  if (object != num_complete_ || filled_ != 0 || whole.empty()) return FrameRefusal::kChunk;
  if (whole.size() > object_bytes_max_ || whole.size() > waiting_bytes_max_ - waiting_bytes_)
    return FrameRefusal::kTooLong;
  waiting_bytes_ += whole.size();
  complete_.push_back(std::move(whole));
  ++num_complete_;
  return FrameRefusal::kNone;
}

Blob BulkAssembly::take(uint64_t object) {
  const uint64_t first = num_complete_ - complete_.size();
  CHECK(object >= first && object < num_complete_, "a bulk object that is not here");
  Blob blob = std::move(complete_[object - first]);
  complete_[object - first] = Blob();
  waiting_bytes_ -= blob.size();
  while (!complete_.empty() && complete_.front().empty()) complete_.pop_front();
  return blob;
}

}  // namespace primerl
