#include "runtime/trace/content_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>

#include "graph/base/files.h"

namespace primerl {
namespace {

int value_of(char digit) {
  if (digit >= '0' && digit <= '9') return digit - '0';
  return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

// A name in the same folder as its target, unique to this writer.
std::filesystem::path temporary_name(const std::filesystem::path& target) {
  static std::atomic<uint64_t> count = 0;
  return fmt::format("{}.{}.{}.tmp", target.string(), ::getpid(), count.fetch_add(1));
}

}  // namespace

std::string to_hex(const ContentHash& hash) {
  std::string text;
  for (const std::byte b : hash) text += fmt::format("{:02x}", static_cast<unsigned>(b));
  return text;
}

std::optional<ContentHash> content_hash_from_hex(std::string_view text) {
  ContentHash hash{};
  if (text.size() != 2 * hash.size()) return std::nullopt;
  for (size_t i = 0; i < hash.size(); ++i) {
    const int high = value_of(text[2 * i]), low = value_of(text[2 * i + 1]);
    if (high < 0 || low < 0) return std::nullopt;
    hash[i] = static_cast<std::byte>(16 * high + low);
  }
  return hash;
}

bool ContentStore::has(const ContentHash& hash) const {
  std::error_code fault;
  return std::filesystem::is_regular_file(path_of(hash), fault);
}

Result<ContentHash> ContentStore::store(std::span<const std::byte> bytes) const {
  const ContentHash hash = sha256(bytes);
  if (has(hash)) return hash;
  FileOps& files = system_files();
  std::error_code fault;
  if (!std::filesystem::exists(folder_, fault)) {
    if (!folder_.parent_path().empty()) RETURN_IF_ERROR(files.make_folder(folder_.parent_path()));
    if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST)
      return io_error("creating folder", folder_, errno);
  }
  const auto target = path_of(hash), beside = temporary_name(target);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  Status written = files.write_file(beside, text);
  if (written.ok() && syncs_) written = files.sync(beside);
  if (written.ok()) written = files.rename(beside, target);
  if (written.ok() && syncs_) written = files.sync(folder_);
  if (written.ok()) return hash;
  std::filesystem::remove(beside, fault);  // it may be half written
  return std::move(written).error();
}

Result<std::vector<std::byte>> ContentStore::load(const ContentHash& hash) const {
  const auto path = path_of(hash);
  std::error_code fault;
  const auto size = std::filesystem::file_size(path, fault);
  if (fault) return error(Code::kNotFound, "'{}' is not there", path.string());
  std::vector<std::byte> bytes(size);
  std::ifstream in(path, std::ios::binary);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (!in) return io_error("reading", path, EIO);
  if (sha256(bytes) != hash)
    return error(Code::kCorrupt, "'{}' is damaged: its content has another hash", path.string());
  return bytes;
}

Result<std::vector<ContentHash>> ContentStore::list() const {
  std::vector<ContentHash> hashes;
  std::error_code fault;
  if (!std::filesystem::exists(folder_, fault)) return hashes;
  std::filesystem::directory_iterator entries(folder_, fault);
  if (fault) return io_error("listing", folder_, fault.value());
  for (; entries != std::filesystem::directory_iterator(); entries.increment(fault)) {
    if (fault) return io_error("listing", folder_, fault.value());
    if (auto hash = content_hash_from_hex(entries->path().filename().string()))
      hashes.push_back(*hash);
  }
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

}  // namespace primerl
