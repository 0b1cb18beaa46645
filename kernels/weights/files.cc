#include "kernels/weights/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace primerl {
namespace {

Error system_error(std::string_view doing, const std::filesystem::path& file) {
  const int number = errno;
  return error(number == ENOENT ? Code::kNotFound : Code::kIo, "{} '{}': {}", doing, file.string(),
               std::strerror(number));
}

/// Closes when it dies.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }
  /// Closes now; false when the system could not.
  bool close() { return ::close(std::exchange(number_, -1)) == 0; }

 private:
  int number_;
};

Result<size_t> size_of(const Descriptor& descriptor, const std::filesystem::path& file) {
  struct stat facts = {};
  if (::fstat(descriptor.number(), &facts) != 0) return system_error("cannot look at", file);
  if (!S_ISREG(facts.st_mode)) return error(Code::kInvalid, "'{}' is no file", file.string());
  return static_cast<size_t>(facts.st_size);
}

Status write_all(const Descriptor& descriptor, std::span<const std::byte> bytes,
                 const std::filesystem::path& file) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor.number(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return system_error("cannot write", file);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return ok();
}

}  // namespace

Result<MappedFile> map_file(const std::filesystem::path& file) {
  const Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.number() < 0) return system_error("cannot open", file);
  ASSIGN_OR_RETURN(const size_t size, size_of(descriptor, file));
  if (size == 0) return MappedFile();
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor.number(), 0);
  if (address == MAP_FAILED) return system_error("cannot map", file);
  std::shared_ptr<const void> owner(
      address, [size](const void* mapped) { ::munmap(const_cast<void*>(mapped), size); });
  return MappedFile{std::move(owner), {static_cast<const std::byte*>(address), size}};
}

Result<std::string> read_text_file(const std::filesystem::path& file, size_t bytes_max) {
  const Descriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (descriptor.number() < 0) return system_error("cannot open", file);
  ASSIGN_OR_RETURN(const size_t size, size_of(descriptor, file));
  if (size > bytes_max)
    return error(Code::kExhausted, "'{}' has {} bytes, more than the limit of {}", file.string(),
                 size, bytes_max);
  std::string text(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const ssize_t got = ::read(descriptor.number(), text.data() + filled, size - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return system_error("cannot read", file);
    if (got == 0) break;
    filled += static_cast<size_t>(got);
  }
  text.resize(filled);
  return text;
}

Status write_file_synced(const std::filesystem::path& file,
                         std::span<const std::span<const std::byte>> parts) {
  Descriptor descriptor(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (descriptor.number() < 0) return system_error("cannot create", file);
  for (const auto part : parts) RETURN_IF_ERROR(write_all(descriptor, part, file));
  if (::fsync(descriptor.number()) != 0) return system_error("cannot sync", file);
  if (!descriptor.close()) return system_error("cannot close", file);
  return ok();
}

Status sync_folder(const std::filesystem::path& folder) {
  const Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.number() < 0) return system_error("cannot open folder", folder);
  if (::fsync(descriptor.number()) != 0) return system_error("cannot sync folder", folder);
  return ok();
}

}  // namespace primerl
