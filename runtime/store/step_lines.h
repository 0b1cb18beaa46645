/// StepLines: the trainers' reports about their steps in one process, on the way to metrics.jsonl.
///
///   trainer -> StepWriter -> logs/<process>.steps.jsonl -> StepReader -> metrics.jsonl
///            the worker      stays until it is read whole    the control plane
///
/// Because a file is between the two, a stopped or slow control plane loses nothing and blocks no
/// trainer. Every line is read once, in order, perhaps late.
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
  double wall_seconds = 0;  // seconds since 1970, when it was reported
  MetricValues values;
};

std::filesystem::path step_lines_file(const std::filesystem::path& logs_folder,
                                      const std::string& process);
/// Every such file in a folder, sorted: those that an earlier start left.
std::vector<std::filesystem::path> find_step_lines(const std::filesystem::path& logs_folder);

/// The worker's side. The first line creates the file. After an error every call returns the same
/// error, because readers count on a file without a missing step. Thread-safe.
class StepWriter {
 public:
  explicit StepWriter(std::filesystem::path file) : file_(std::move(file)) {}
  Status append(const StepLine& line);

 private:
  const std::filesystem::path file_;
  std::mutex mutex_;  // guards the members below
  std::unique_ptr<LineFile> lines_;
  Status fault_;
};

/// The control plane's side. Not thread-safe.
class StepReader {
 public:
  /// Bytes read per call. It limits memory, not the size of the file.
  static constexpr size_t kReadBytes = size_t{1} << 20;

  explicit StepReader(std::filesystem::path file) : file_(std::move(file)) {}
  /// The next lines, at most about kReadBytes of them; empty without new lines (or without the
  /// file).
  Result<std::vector<StepLine>> take();
  /// All lines were read: removes the file.
  void remove();

 private:
  const std::filesystem::path file_;
  uint64_t num_taken_ = 0;  // bytes
};

}  // namespace primerl
