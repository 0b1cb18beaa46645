/// Divides documents over the ranks of a learner whose ranks step together, and into the
/// micro-batches of each rank.
///
/// First fit of the longest documents first, then an equal number of micro-batches for each rank,
/// with nearly equal costs. A document is never cut. Pure: equal input gives equal output, and ties
/// go to the lower index.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/models/config.h"

namespace primerl {

/// What one document adds to a micro-batch: rows, and their cost in any unit. Documents that share
/// rows, such as samples with one prompt, are one.
struct Document {
  int64_t rows = 0;
  double cost = 0;
};

/// Cost of a learner's rows, in multiply-adds of a forward pass; backward is twice each.
struct RowCosts {
  double per_row = 0;     // GEMMs of the layers
  double per_target = 0;  // head, for each token with a loss
  double per_pair = 0;    // attention, for each key that a query reads

  /// The cost of a document of `rows` rows whose every row has a loss: a n + b n^2.
  double of(int64_t rows) const;
};
RowCosts row_costs(const ModelConfig& config);

/// Puts each document into the first bin with space for it, else into a new one: the documents of
/// each bin, in their order. One longer than `rows_max` gets a bin of its own. O(n log n).
std::vector<std::vector<size_t>> first_fit(std::span<const Document> documents, int64_t rows_max);

/// The documents of a micro-batch; empty: a dummy without loss, so that ranks have equally many.
using MicroBatchPlan = std::vector<size_t>;
/// The micro-batches of a rank. With several ranks the costliest is first, since ranks wait for
/// each other after each.
using RankPlan = std::vector<MicroBatchPlan>;

/// The micro-batches of each of `ranks` ranks, of at most `rows_max` rows unless one document is
/// longer. `documents` are sorted by falling rows. One rank: first_fit(). More ranks: the costliest
/// bins are halved until each rank has equally many; Karmarkar-Karp differencing assigns them; then
/// documents move, or change places, between the costliest rank and others. A step of that is at
/// most O(n log n), and there are at most 16 for each rank. So the greatest cost of a rank is at
/// most that of the assignment. Last, the micro-batches of each rank get nearly equal costs, if
/// that makes a step cheaper whose ranks wait for each other after each micro-batch.
std::vector<RankPlan> share_over_ranks(std::span<const Document> documents, int64_t rows_max,
                                       int32_t ranks);

}  // namespace primerl
