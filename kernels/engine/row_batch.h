/// Tokens of many sequences packed into the rows of one forward pass, and the keys each row attends
/// to.
///
/// A plain value, reused between steps so that nothing is allocated per token. A row writes its key
/// and value to row `cache_rows[row]` of the cache. A span is a run of rows of one sequence. Its
/// query i attends to the keys 0 .. num_cached + i. Key j is in cache row kv_blocks[kv_offset + j /
/// block_size] * block_size + j % block_size. This form serves paged caches, chunked prompts,
/// packed documents and prompts that samples share (the last two with block_size 1).
#pragma once

#include <cstdint>
#include <vector>

namespace primerl {

/// The adapter slot of rows without an adapter.
inline constexpr int32_t kNoAdapter = -1;

struct RowSpan {
  int32_t query_begin = 0;
  int32_t num_queries = 0;
  int32_t num_cached = 0;  // keys before the first query's own key
  int32_t kv_offset = 0;
  int32_t adapter = kNoAdapter;  // adapter slot of its rows

  int32_t num_keys() const { return num_cached + num_queries; }
};

struct RowBatch {
  std::vector<int32_t> tokens;      // [num_rows]
  std::vector<int32_t> positions;   // [num_rows], from 0 in each sequence
  std::vector<int32_t> cache_rows;  // [num_rows]
  std::vector<RowSpan> spans;       // cover the rows in order
  std::vector<int32_t> kv_blocks;
  std::vector<uint64_t> draws;  // [num_rows]: random-number key of each row for dropout; empty: no
                                // dropout
  int32_t block_size = 1;       // cache rows per block

  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()); }
  /// Clears everything but the block size.
  void clear() {
    tokens.clear();
    positions.clear();
    cache_rows.clear();
    spans.clear();
    kv_blocks.clear();
    draws.clear();
  }
};

}  // namespace primerl
