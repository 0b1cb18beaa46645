/// The body of `forward_backward`, as protobuf, and the LossBatch that a learner is given for it.
/// Pure, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/base/result.h"
#include "kernels/train/loss_batch.h"

namespace primerl::tinker {

inline constexpr size_t kDataMax = 4096;  // of one request; the SDK sends 1,024

/// The shape in which the client expects the log-probabilities of a datum.
struct TargetShape {
  int64_t num_rows = 0;
  int64_t num_columns = 0;          // 0: a vector
  std::vector<int64_t> cells = {};  // the cell of each target, rising; empty: all of them

  int64_t num_cells() const { return num_columns == 0 ? num_rows : num_rows * num_columns; }
  template <class F>
  static void fields(F& f) {
    using T = TargetShape;
    f("num_rows", &T::num_rows)("num_columns", &T::num_columns)("cells", &T::cells);
  }
  friend bool operator==(const TargetShape&, const TargetShape&) = default;
};

struct LossRequest {
  std::string model;
  int64_t seq = 0;
  LossBatch batch;                  // tenant 0; check_loss_batch() has not judged it
  std::vector<TargetShape> shapes;  // of each datum
};

/// In a target tensor with rows and columns, row r has the targets after token r. Cells that no
/// sparse tensor lists are no targets. The error names the datum and the tensor.
Result<LossRequest> read_loss_request(std::string_view body);

}  // namespace primerl::tinker
