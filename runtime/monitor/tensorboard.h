/// TensorBoardFile: scalars and histograms (graph/base/histogram.h) as a TensorBoard event file,
/// written by hand (no protobuf).
///
///   record = u64 length, u32 masked_crc32c(length), data, u32 masked_crc32c(data), little-endian
///   data   = Event { 1 double wall_time, 2 int64 step, 3 string file_version,
///                    5 Summary { repeated 1 Value { 1 string tag, 2 float simple_value,
///                                                   5 HistogramProto histo } } }
///   HistogramProto { 1 double min, 2 max, 3 num, 4 sum, 5 sum_squares,
///                    6 packed double bucket_limit, 7 packed double bucket }
///
/// The buckets are counts, so `sum` and `sum_squares` are those of the middles of the buckets.
///
/// One record is one write, so a reader of a growing file, or of a killed run's file, sees complete
/// records. Each start of a run makes its own file, as TensorBoard expects. Not thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "graph/base/services.h"

namespace primerl {

class TensorBoardFile {
 public:
  /// `wall_time` in seconds since 1970; it is part of the file's name.
  static Result<std::unique_ptr<TensorBoardFile>> create(const std::filesystem::path& folder,
                                                         double wall_time);
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;
  ~TensorBoardFile();

  /// All values of one step; `prefix` ("" or "main/") goes before every tag.
  Status write(double wall_time, int64_t step, std::string_view prefix, const MetricValues& values);

 private:
  TensorBoardFile(std::filesystem::path file, int fd) : file_(std::move(file)), fd_(fd) {}
  Status write_record(const std::string& event);

  const std::filesystem::path file_;
  const int fd_;
  std::optional<Error> fault_;
};

}  // namespace primerl
