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

}  // namespace

std::string text_sha256(std::string_view text) { return digits_of(std::as_bytes(std::span(text))); }

Result<std::string> file_sha256(const std::string& file) {
  ASSIGN_OR_RETURN(const MappedFile mapped, map_file(file));
  return digits_of(mapped.bytes);
}

Status check_file_sha256(const std::string& file, const std::string& expected) {
  ASSIGN_OR_RETURN(const std::string found, file_sha256(file));
  if (found == expected) return ok();
  return error(Code::kInvalid, "'{}' has another content than expected", file)
      .note(fmt::format("SHA-256 of the file: {}", found))
      .note(fmt::format("expected:            {}", expected))
      .note("give the run its old file back, or start a new run");
}

}  // namespace primerl
