/// Log: the log file of a process, one JSON object per line; messages and metrics are not in it.
///
///   {"timestamp":"2026-11-21T06:24:45.123Z","level":"warning","instance":"decode","message":"..."}
///
/// Callers never wait: lines go into a bounded ring, and one background thread writes them. When
/// the ring overflows, the oldest lines are dropped; the drops are counted and reported at the end.
/// Warnings and errors are also written to stderr. Any thread may write.
#pragma once

#include <filesystem>
#include <memory>
#include <string_view>

#include "graph/base/services.h"

namespace primerl {

struct LogOptions {
  size_t lines_max = 8192;           // in the ring
  LogLevel level = LogLevel::kInfo;  // lines below this level are ignored
  LogLevel stderr_level = LogLevel::kWarning;
};

class Log {
 public:
  static Result<std::unique_ptr<Log>> open(const std::filesystem::path& file,
                                           const LogOptions& options = {});
  /// Writes the waiting lines, at most once the ring's content.
  ~Log();
  void write(LogLevel level, std::string_view instance, std::string_view text);
  /// Writes the last line of a process that is about to end. It bypasses the ring, runs on the
  /// calling thread, and has written the file when it returns. Waiting lines may be lost.
  void write_last(LogLevel level, std::string_view instance, std::string_view text);
  /// Number of lines lost so far because the writer was too slow.
  uint64_t num_dropped() const;

 private:
  struct Writer;
  explicit Log(std::unique_ptr<Writer> writer);
  const std::unique_ptr<Writer> writer_;
};

std::string_view to_string(LogLevel level);  // "debug", "info", "warning", "error"

}  // namespace primerl
