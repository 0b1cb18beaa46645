#include "runtime/control/audit_log.h"

#include "graph/base/json.h"
#include "graph/config/diagnostic.h"

namespace primerl {

namespace fs = std::filesystem;

Status AuditLog::open() {
  std::error_code fault;
  fs::create_directories(folder_, fault);
  ASSIGN_OR_RETURN(lines_, LineFile::open(file()));
  const auto size = fs::file_size(file(), fault);
  num_bytes_ = fault ? 0 : size;
  return ok();
}

Status AuditLog::add(const AuditEntry& entry) {
  const std::string line = Json::object()
                               .set("time", entry.time)
                               .set("who", entry.who)
                               .set("method", shown_text(entry.method, kTextBytesMax))
                               .set("path", shown_text(entry.path, kTextBytesMax))
                               .set("status", entry.status)
                               .set("result", shown_text(entry.result, kTextBytesMax))
                               .dump();
  if (lines_ == nullptr) RETURN_IF_ERROR(open());
  if (num_bytes_ > 0 && num_bytes_ + line.size() + 1 > bytes_max_) {
    lines_.reset();
    std::error_code fault;
    fs::rename(file(), older_file(), fault);
    if (fault) return error(Code::kIo, "renaming '{}': {}", file().string(), fault.message());
    RETURN_IF_ERROR(open());
  }
  RETURN_IF_ERROR(lines_->append(line));
  num_bytes_ += line.size() + 1;
  return ok();
}

}  // namespace primerl
