/// StepLines: what the trainers of one process report of their steps, on its way to metrics.jsonl.
///
///   trainer -> StepWriter -> logs/<process>.steps.jsonl -> StepReader -> metrics.jsonl
///            the worker      stays until it is read whole    the control plane
///
/// The file is between the two, so that a control plane that is stopped or slow loses nothing and
/// blocks no trainer: every line is read once, in order, perhaps late.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graph/base/services.h"
#include "runtime/store/line_file.h"

namespace primerl {

struct StepLine {
  std::string tenant;
  int64_t step = 0;
  double wall_seconds = 0;  // since 1970, when it was reported
  MetricValues values;
};

std::filesystem::path step_lines_file(const std::filesystem::path& logs_folder,
                                      const std::string& process);
/// Every such file there, sorted: what an earlier start left.
std::vector<std::filesystem::path> find_step_lines(const std::filesystem::path& logs_folder);

/// The worker's end. Makes the file with the first line. Thread-safe.
class StepWriter {
 public:
  explicit StepWriter(std::filesystem::path file) : file_(std::move(file)) {}
  Status append(const StepLine& line);

 private:
  const std::filesystem::path file_;
  std::mutex mutex_;  // guards what follows
  std::unique_ptr<LineFile> lines_;
};

/// The control plane's end. Not thread-safe.
class StepReader {
 public:
  /// Bytes read at once: a bound of memory, not of what is waiting.
  static constexpr size_t kReadBytes = size_t{1} << 20;

  explicit StepReader(std::filesystem::path file) : file_(std::move(file)) {}
  /// The next lines, at most about kReadBytes of them; none when there is nothing new (or no file).
  Result<std::vector<StepLine>> take();
  /// Everything was taken: removes the file.
  void remove();

 private:
  const std::filesystem::path file_;
  uint64_t num_taken_ = 0;  // bytes
};

}  // namespace primerl
