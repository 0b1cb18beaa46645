#include "runtime/worker/weight_streams.h"

#include <algorithm>

namespace primerl {
namespace {

constexpr size_t kEarlyMax = 4096;       // frames; a peer sends one request per channel
constexpr size_t kEarlyBytesMax = 4096;  // size of a request

std::vector<std::byte> copy_of(const Blob& blob) {
  return {blob.bytes().begin(), blob.bytes().end()};
}

bool holds(const std::vector<ProcessId>& peers, ProcessId peer) {
  return std::binary_search(peers.begin(), peers.end(), peer);
}

}  // namespace

void WeightStreams::add(uint32_t stream, std::vector<ProcessId> peers,
                        std::shared_ptr<StreamChannel> channel) {
  const std::lock_guard lock(mutex_);
  for (const Early& early : early_)
    if (early.stream == stream && holds(peers, early.from))
      channel->handle(early.from.value, early.incarnation, early.frame);
  std::erase_if(early_, [stream](const Early& early) { return early.stream == stream; });
  entries_.push_back({stream, std::move(peers), std::move(channel)});
}

bool WeightStreams::next(ProcessId to, uint32_t incarnation, StreamFrame& frame) {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    if (!holds(entry.peers, to)) continue;
    auto made = entry.channel->next(to.value, incarnation);
    if (!made) continue;
    frame = {entry.stream, Blob(std::move(made->head)), std::move(made->body)};
    return true;
  }
  return false;
}

void WeightStreams::arrive(ProcessId from, uint32_t incarnation, const StreamFrame& frame) {
  const std::lock_guard lock(mutex_);
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& each) { return each.stream == frame.stream; });
  PeerFrame made{copy_of(frame.head), frame.body};
  if (entry != entries_.end()) {
    if (holds(entry->peers, from)) entry->channel->handle(from.value, incarnation, made);
    return;
  }
  // Frames with weight bytes come only after a request.
  if (!frame.body.empty() || frame.head.size() > kEarlyBytesMax || early_.size() >= kEarlyMax)
    return;
  early_.push_back({frame.stream, from, incarnation, std::move(made)});
}

void WeightStreams::ended(ProcessId peer, uint32_t incarnation) {
  const std::lock_guard lock(mutex_);
  std::erase_if(early_, [&](const Early& early) {
    return early.from == peer && early.incarnation <= incarnation;
  });
  for (const Entry& entry : entries_)
    if (holds(entry.peers, peer)) entry.channel->peer_ended(peer.value, incarnation);
}

}  // namespace primerl
