/// Log: the log file of a process, one JSON object a line; messages and metrics are not in it.
///
///   {"timestamp":"2026-11-21T06:24:45.123Z","level":"warning","instance":"decode","message":"..."}
///
/// Callers never wait: a bounded ring takes the lines, one background thread writes them, the
/// oldest are dropped when it overflows, and the drops are counted and reported at the end.
/// Warnings and errors are also written to stderr. Any thread may write.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "graph/base/services.h"

namespace primerl {

struct LogOptions {
  size_t lines_max = 8192;           // in the ring
  LogLevel level = LogLevel::kInfo;  // below it nothing is kept
  LogLevel stderr_level = LogLevel::kWarning;
};

class Log {
 public:
  static Result<std::unique_ptr<Log>> open(const std::filesystem::path& file,
                                           const LogOptions& options = {});
  /// Writes what waits, at most once the ring's content.
  ~Log();
  void write(LogLevel level, std::string_view instance, std::string_view text);
  /// Likewise of the last line of a process that is about to end: past the ring, on the calling
  /// thread, and in the file when it returns. Lines that wait may be lost.
  void write_last(LogLevel level, std::string_view instance, std::string_view text);
  /// Lines lost so far because the writer fell behind.
  uint64_t num_dropped() const;

 private:
  struct Writer;
  explicit Log(std::unique_ptr<Writer> writer);
  const std::unique_ptr<Writer> writer_;
};

std::string_view to_string(LogLevel level);  // "debug", "info", "warning", "error"

}  // namespace primerl
