/// AuditLog: who changed what through the control API, one JSON object per line of
/// `logs/audit.jsonl`.
///
///   {"time":"2026-11-27T10:15:02Z","who":"operator","method":"POST","path":"/v1/tenants",
///    "status":200,"result":"alice is starting"}
///
/// A file has at most kFileBytesMax bytes; then it becomes `audit.1.jsonl`, and the one before is
/// removed. Tokens, bodies and queries never enter it. Not thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "graph/base/result.h"
#include "runtime/store/line_file.h"

namespace primerl {

struct AuditEntry {
  std::string time;  // iso_time()
  std::string who;   // TokenHolder::who()
  std::string method;
  std::string path;
  int32_t status = 200;
  std::string result;
};

class AuditLog {
 public:
  static constexpr uint64_t kFileBytesMax = uint64_t{8} << 20;
  static constexpr size_t kTextBytesMax = 400;  // of a path and of a result; the rest is cut

  /// `bytes_max` of one file is kFileBytesMax but in tests.
  explicit AuditLog(std::filesystem::path logs_folder, uint64_t bytes_max = kFileBytesMax)
      : folder_(std::move(logs_folder)), bytes_max_(bytes_max) {}
  /// Writes the line before it returns.
  Status add(const AuditEntry& entry);

  std::filesystem::path file() const { return folder_ / "audit.jsonl"; }
  std::filesystem::path older_file() const { return folder_ / "audit.1.jsonl"; }

 private:
  Status open();

  const std::filesystem::path folder_;
  const uint64_t bytes_max_;
  uint64_t num_bytes_ = 0;
  std::unique_ptr<LineFile> lines_;  // null until the first entry
};

}  // namespace primerl
