/// PeerBatches: the batches that an actor group writes for other groups, one open batch per peer.
/// It collects messages and grants, and hands each batch to the executor when it is due. It also
/// knows the newest incarnation of each peer's process.
///
///   add(), request_grant(), mark_due()  ->  flush()  ->  GroupExecutor::ship()
///
/// Peers are numbered 0, 1, ... in the order of GroupWiring::peers. A batch with a message is due.
/// A batch that has only grants waits until mark_due(), so that grants travel with messages.
///
/// Owned by the GroupLinks of its group. Threads: the group's thread.
#pragma once

#include <vector>

#include "runtime/exec/inbox.h"
#include "runtime/exec/running.h"

namespace primerl {

class PeerBatches {
 public:
  /// Stands for "no peer": the group itself, or a group without a common link.
  static constexpr uint32_t kNone = UINT32_MAX;

  /// `common` must stay valid while the batches exist.
  explicit PeerBatches(const GroupCommon& common);

  /// kNone for a group that has no link to or from this one.
  uint32_t index_of(GroupId group) const;
  /// Whether the peer's group is in another process.
  bool is_remote(uint32_t peer) const;
  uint32_t size() const { return static_cast<uint32_t>(open_.size()); }

  /// Adds a message; the batch leaves with the next flush().
  void add(uint32_t peer, LinkId link, Envelope&& envelope) {
    mark_due(peer);
    open_[peer].batch.messages.emplace_back(link, std::move(envelope));
  }
  /// The batch of `peer` must grant the settled totals of incoming link `in_index` when it leaves.
  void request_grant(uint32_t peer, uint32_t in_index) {
    open_[peer].ungranted.push_back(in_index);
  }
  /// The batch of `peer` must leave with the next flush().
  void mark_due(uint32_t peer) {
    if (open_[peer].is_due) return;
    open_[peer].is_due = true;
    due_.push_back(peer);
  }
  /// Ships every batch that is due, with the grants that were requested for it. `links`: the
  /// incoming links of the group, whose totals are granted.
  void flush(std::vector<InLink>& links);
  bool is_empty() const { return due_.empty(); }

  /// Every later batch has this number of the newest cut that the group joined.
  void set_cut(uint64_t number) { cut_ = number; }
  uint64_t cut() const { return cut_; }

  /// Grants of an older incarnation than `incarnation` are ignored from now on. It never goes back.
  void set_incarnation(uint32_t peer, uint32_t incarnation);
  bool is_old(uint32_t peer, uint32_t incarnation) const {
    return incarnation < open_[peer].incarnation;
  }

  std::vector<SavedPeer> saved() const;
  /// `saved` has one element per peer.
  void restore(const std::vector<SavedPeer>& saved);

 private:
  struct OpenBatch {
    MessageBatch batch;
    std::vector<uint32_t> ungranted;  // in_index of links that have settled messages without a
                                      // grant
    bool is_due = false;              // is an element of due_
    uint32_t incarnation = 0;         // of the peer's process
  };

  const GroupCommon& common_;
  const std::vector<GroupId>& peers_;  // ascending
  std::vector<OpenBatch> open_;        // parallel to peers_
  std::vector<uint32_t> due_;          // peers in the order in which their batches became due
  uint64_t cut_ = 0;
};

}  // namespace primerl
