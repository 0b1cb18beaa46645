#include "runtime/exec/peer_batches.h"

#include <algorithm>

namespace primerl {

PeerBatches::PeerBatches(const GroupCommon& common)
    : common_(common),
      peers_(common.setup.wiring->groups[common.setup.group.index()].peers),
      open_(peers_.size()) {
  for (size_t i = 0; i < open_.size(); ++i) {
    open_[i].batch.from = common.setup.group;
    open_[i].batch.to = peers_[i];
    open_[i].batch.incarnation = common.setup.incarnation;
  }
}

uint32_t PeerBatches::index_of(GroupId group) const {
  const auto found = std::lower_bound(peers_.begin(), peers_.end(), group);
  if (found == peers_.end() || *found != group) return kNone;
  return static_cast<uint32_t>(found - peers_.begin());
}

bool PeerBatches::is_remote(uint32_t peer) const {
  return common_.setup.plan->group(peers_[peer]).process != common_.planned().process;
}

void PeerBatches::flush(std::vector<InLink>& links) {
  for (uint32_t peer : due_) {
    OpenBatch& open = open_[peer];
    open.is_due = false;
    for (uint32_t index : open.ungranted) {
      InLink& in = links[index];
      in.is_ungranted = false;
      in.granted_messages = in.settled_messages;
      in.granted_bytes = in.settled_bytes;
      open.batch.grants.push_back({in.id, in.settled_messages, in.settled_bytes, in.incarnation});
    }
    open.ungranted.clear();
    open.batch.cut = cut_;
    common_.setup.executor->ship(std::move(open.batch));
    open.batch.messages.clear();
    open.batch.grants.clear();
  }
  due_.clear();
}

void PeerBatches::set_incarnation(uint32_t peer, uint32_t incarnation) {
  open_[peer].incarnation = std::max(open_[peer].incarnation, incarnation);
}

std::vector<SavedPeer> PeerBatches::saved() const {
  std::vector<SavedPeer> saved;
  for (const OpenBatch& open : open_) saved.push_back({open.batch.to, open.incarnation});
  return saved;
}

void PeerBatches::restore(const std::vector<SavedPeer>& saved) {
  for (size_t i = 0; i < open_.size(); ++i) open_[i].incarnation = saved[i].incarnation;
}

}  // namespace primerl
