/// Names of KV blocks by content: equal names mean equal keys and values, so that sequences with
/// the same prefix may share a block.
///
/// A block of n tokens is named by a chain of SHA-256 hashes, the first 16 bytes of each:
///
///   root  = H("primerl-graph/kv/v2" || length, bytes of the fingerprint || of the layout ||
///             u32 block size)
///   block = H(parent || u32 n || n x u32 token || extras)      parent: 32 bytes, root for block 0
///   extra = u8 tag || u32 length || bytes: 1 = weights key (u32 tenant, u32 adapter), in every
///           block; 2 = salt, in block 0 alone; 3 = i64 policy version, in block 0 alone, where the
///           salt is empty
///
/// All integers little-endian. The fingerprint identifies the model, the layout (KvLayout::text())
/// the form of its cache, and the salt the version of its weights. Without a salt, the policy
/// version is hashed, so versions never share a block. Only full blocks have names. Golden vectors,
/// made by another implementation: tests/kernels/fixtures/block_hashes.json. Used by one thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "graph/base/result.h"
#include "graph/base/sha256.h"
#include "kernels/weights/weights_key.h"

namespace primerl {

/// 128 bits: finding two prompts with the same name is not practical.
struct BlockName {
  uint64_t low = 0, high = 0;
  friend bool operator==(const BlockName&, const BlockName&) = default;
};

inline constexpr size_t kSaltBytesMax = 128;

/// A salt is empty or at most kSaltBytesMax printable ASCII characters without space.
Status check_salt(std::string_view salt);

/// The owner of blocks: equal tokens have equal names only within one scope.
struct BlockScope {
  WeightsKey key;
  std::string_view salt;
  PolicyVersion version;  // the version that began the sequence
};

/// The hash chain of one sequence: the hash of its last full block, or the root.
struct BlockChain {
  Sha256 hash{};
  int32_t num_blocks = 0;

  /// The name of the last block.
  BlockName name() const;
};

class BlockHasher {
 public:
  BlockHasher(std::string_view fingerprint, std::string_view layout, int32_t block_size);

  BlockChain begin() const { return {root_, 0}; }
  /// `chain` extended by one block with `tokens` [block size].
  BlockChain next(const BlockChain& chain, std::span<const int32_t> tokens,
                  const BlockScope& scope);

 private:
  const int32_t block_size_;
  Sha256 root_{};
  Sha256Stream stream_;
  std::vector<std::byte> message_;  // scratch
};

}  // namespace primerl
