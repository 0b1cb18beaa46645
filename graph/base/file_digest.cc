#include "graph/base/file_digest.h"

#include <span>

#include "graph/base/files.h"
#include "graph/base/sha256.h"

namespace primerl {
namespace {

std::string digits_of(std::span<const std::byte> bytes) {
  std::string digits;
  for (const std::byte byte : sha256(bytes))
    digits += fmt::format("{:02x}", static_cast<int>(byte));
  return digits;
}

std::string text_of(const FileDigest& digest) {
  return fmt::format("{} bytes, SHA-256 {}",
                     digest.bytes < 0 ? std::string("any number of") : std::to_string(digest.bytes),
                     digest.sha256.empty() ? "any" : digest.sha256);
}

}  // namespace

std::string text_sha256(std::string_view text) { return digits_of(std::as_bytes(std::span(text))); }

Result<FileDigest> file_digest(const std::string& file) {
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  return FileDigest{digits_of(mapped.bytes), static_cast<int64_t>(mapped.bytes.size())};
}

Status check_file_digest(const std::string& file, const FileDigest& expected) {
  if (expected.sha256.empty() && expected.bytes < 0) return ok();
  ASSIGN_OR_RETURN(const FileDigest found, file_digest(file));
  const bool is_same_size = expected.bytes < 0 || found.bytes == expected.bytes;
  if (is_same_size && (expected.sha256.empty() || found.sha256 == expected.sha256)) return ok();
  return error(Code::kInvalid, "'{}' has another content than expected", file)
      .note("the file: " + text_of(found))
      .note("expected: " + text_of(expected))
      .note("give the run its old file back, or start a new run");
}

}  // namespace primerl
