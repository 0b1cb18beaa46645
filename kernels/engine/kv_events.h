/// Changes of the blocks that can be found by name, for programs that follow an engine's prefix
/// cache from outside: a router, an index, a person. The kinds and their meaning are those of vLLM.
///
/// An event is about names, not blocks. kBlockStored: a name can be found that could not be found
/// before. kBlockRemoved: the last block of a name was reused or lost its name. So a program that
/// replays all events has exactly the names that BlockPool::find() finds. Events are numbered from
/// 1 without gaps; the first is kAllBlocksCleared, since a new engine finds nothing.
///
/// A log has at most `events_max` events. Further events are dropped and counted. They cannot be
/// reported later, so the next event is kAllBlocksCleared: the follower then knows fewer names than
/// exist, never one that is gone. Belongs to one engine; used by one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/engine/block_hash.h"

namespace primerl {

enum class KvEventKind : uint8_t { kBlockStored, kBlockRemoved, kAllBlocksCleared };

inline std::string_view to_string(KvEventKind kind) {
  constexpr std::string_view kNames[] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};
  return kNames[static_cast<size_t>(kind)];
}

struct KvEvent {
  uint64_t number = 0;
  KvEventKind kind = KvEventKind::kAllBlocksCleared;
  BlockName name;                   // of every kind but kAllBlocksCleared
  std::optional<BlockName> parent;  // kBlockStored: the block before it; empty: it is the first
  std::vector<int32_t> tokens;      // kBlockStored: [block size]
  WeightsKey key;                   // of kBlockStored
};

/// The result of take_kv_events().
struct KvEvents {
  std::vector<KvEvent> events;
  uint64_t num_dropped = 0;  // total since the engine was made
};

class KvEventLog {
 public:
  explicit KvEventLog(size_t events_max) : events_max_(events_max) { clear(); }

  void stored(const BlockName& name, std::optional<BlockName> parent,
              std::span<const int32_t> tokens, WeightsKey key) {
    KvEvent* const event = add(KvEventKind::kBlockStored);
    if (event == nullptr) return;
    event->name = name;
    event->parent = parent;
    event->tokens.assign(tokens.begin(), tokens.end());
    event->key = key;
  }
  void removed(const BlockName& name) {
    if (KvEvent* const event = add(KvEventKind::kBlockRemoved)) event->name = name;
  }
  /// The events since the last call.
  KvEvents take() { return {std::exchange(events_, {}), num_dropped_}; }

 private:
  void clear() { events_.emplace_back().number = ++num_made_; }
  /// Null: the log is full.
  KvEvent* add(KvEventKind kind) {
    const size_t needed = has_gap_ ? 2 : 1;
    if (events_.size() + needed > events_max_) {
      has_gap_ = true;
      ++num_dropped_;
      return nullptr;
    }
    if (std::exchange(has_gap_, false)) clear();
    KvEvent& event = events_.emplace_back();
    event.number = ++num_made_;
    event.kind = kind;
    return &event;
  }

  const size_t events_max_;
  std::vector<KvEvent> events_;
  uint64_t num_made_ = 0;
  uint64_t num_dropped_ = 0;
  bool has_gap_ = false;  // an event was dropped and kAllBlocksCleared is still due
};

}  // namespace primerl
