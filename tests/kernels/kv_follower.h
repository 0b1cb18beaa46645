/// The state that a reader of an engine's KV events reconstructs, for tests.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/engine/block_pool.h"
#include "kernels/engine/kv_events.h"

namespace primerl {

using NameSet = std::set<std::pair<uint64_t, uint64_t>>;

inline NameSet names_in(const BlockPool& pool) {
  NameSet names;
  for (int32_t block = 0; block < pool.num_blocks(); ++block)
    if (const auto name = pool.name_of(block)) names.emplace(name->low, name->high);
  return names;
}

/// Checks each event: numbers rise by one, no name is stored twice or removed twice, and the tokens
/// of a block give its name, under one of the used salts.
class KvFollower {
 public:
  KvFollower(int32_t block_size, std::vector<std::string> salts)
      : hasher_("", "", block_size), size_(block_size), salts_(std::move(salts)) {}

  void take(const KvEvents& taken) {
    for (const KvEvent& event : taken.events) {
      EXPECT_EQ(event.number, ++num_events_);
      const std::pair name(event.name.low, event.name.high);
      switch (event.kind) {
        case KvEventKind::kAllBlocksCleared:
          names_.clear();
          ++num_clears_;
          break;
        case KvEventKind::kBlockRemoved:
          // After a gap, names may exist that were not reported.
          EXPECT_TRUE(names_.erase(name) == 1 || num_clears_ > 1);
          break;
        case KvEventKind::kBlockStored:
          EXPECT_TRUE(names_.insert(name).second);
          EXPECT_EQ(static_cast<int32_t>(event.tokens.size()), size_);
          expect_named(event);
      }
    }
  }
  const NameSet& names() const { return names_; }
  int num_clears() const { return num_clears_; }

 private:
  void expect_named(const KvEvent& event) {
    BlockChain chain = hasher_.begin();
    if (event.parent) {
      const auto parent = chains_.find({event.parent->low, event.parent->high});
      ASSERT_NE(parent, chains_.end()) << "a block before its parent";
      chain = parent->second;
    }
    for (const std::string& salt : salts_) {
      const BlockChain made = hasher_.next(chain, event.tokens, {event.key, salt, {}});
      if (made.name() == event.name) chains_[{event.name.low, event.name.high}] = made;
    }
    EXPECT_TRUE(chains_.contains({event.name.low, event.name.high})) << "of other tokens";
  }

  BlockHasher hasher_;
  const int32_t size_;
  const std::vector<std::string> salts_;
  NameSet names_;
  std::map<std::pair<uint64_t, uint64_t>, BlockChain> chains_;
  uint64_t num_events_ = 0;
  int num_clears_ = 0;
};

}  // namespace primerl
