/// RowTasks: an environment whose tasks are rows of files. `check` looks at every row.
///
/// Threads: those of its Environment.
#pragma once

#include <string>

#include "actors/env/environment.h"

namespace primerl {

class RowTasks {
 public:
  virtual ~RowTasks() = default;
  /// Rows of all files, those of another split too.
  virtual size_t num_rows() const = 0;
  virtual Result<EnvironmentTask> task_of_row(size_t row) const = 0;
  /// An error about a row that names its file, line and column.
  virtual Error fault_of_row(size_t row, const std::string& what) const = 0;
};

}  // namespace primerl
