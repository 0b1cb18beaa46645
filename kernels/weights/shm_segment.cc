#include "kernels/weights/shm_segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace primerl {
namespace {

Error shm_error(Code code, std::string_view doing, const std::string& name, int number) {
  return error(code, "cannot {} shared memory '{}': {}", doing, name, std::strerror(number));
}

std::string path_of(const std::string& name) { return "/" + name; }

}  // namespace

Result<std::unique_ptr<ShmSegment>> ShmSegment::create(const std::string& name, size_t num_bytes) {
  const int descriptor =
      ::shm_open(path_of(name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0)
    return shm_error(errno == EEXIST ? Code::kExists : Code::kIo, "create", name, errno);
  std::unique_ptr<ShmSegment> segment(new ShmSegment(name, descriptor));
  Status made = segment->reserve(num_bytes);
  if (made.ok()) made = segment->map(num_bytes, Access::kWrite);
  if (made.ok()) return segment;
  segment->remove();
  return made.error();
}

Result<std::unique_ptr<ShmSegment>> ShmSegment::open(const std::string& name, Access access) {
  const int flags = (access == Access::kWrite ? O_RDWR : O_RDONLY) | O_CLOEXEC;
  const int descriptor = ::shm_open(path_of(name).c_str(), flags, 0);
  if (descriptor < 0)
    return shm_error(errno == ENOENT ? Code::kNotFound : Code::kIo, "open", name, errno);
  std::unique_ptr<ShmSegment> segment(new ShmSegment(name, descriptor));
  ASSIGN_OR_RETURN(const size_t size, segment->size_now());
  if (size == 0 && access == Access::kRead)
    return error(Code::kUnavailable, "shared memory '{}' is being made", name);
  if (size > 0) RETURN_IF_ERROR(segment->map(size, access));
  return segment;
}

Result<std::unique_ptr<ShmSegment>> ShmSegment::claim(const std::string& name, size_t num_bytes,
                                                      uint8_t which) {
  const int descriptor =
      ::shm_open(path_of(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (descriptor < 0) return shm_error(Code::kIo, "open", name, errno);
  std::unique_ptr<ShmSegment> segment(new ShmSegment(name, descriptor));
  if (!segment->lock(which, Lock::kExclusive))
    return error(Code::kExists, "shared memory '{}' is claimed by another process", name);
  ASSIGN_OR_RETURN(const size_t size, segment->size_now());
  if (size < num_bytes) RETURN_IF_ERROR(segment->reserve(num_bytes));
  RETURN_IF_ERROR(segment->map(std::max(size, num_bytes), Access::kWrite));
  return segment;
}

Status ShmSegment::reserve(size_t num_bytes) const {
  // Touch the pages now: a page missing later would kill the process instead of giving an error.
  int refused = 0;
  do {
    refused = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(num_bytes));
  } while (refused == EINTR);
  if (refused == 0) return ok();
  return shm_error(refused == ENOSPC ? Code::kExhausted : Code::kIo, "size", name_, refused)
      .note(fmt::format("it needs {} bytes; /dev/shm is where shared memory lives", num_bytes));
}

Result<size_t> ShmSegment::size_now() const {
  struct stat facts = {};
  if (::fstat(descriptor_, &facts) != 0) return shm_error(Code::kIo, "look at", name_, errno);
  return static_cast<size_t>(facts.st_size);
}

Status ShmSegment::map(size_t num_bytes, Access access) {
  const int protection = access == Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* address = ::mmap(nullptr, num_bytes, protection, MAP_SHARED, descriptor_, 0);
  if (address == MAP_FAILED) return shm_error(Code::kIo, "map", name_, errno);
  data_ = static_cast<std::byte*>(address);
  size_ = num_bytes;
  return ok();
}

ShmSegment::~ShmSegment() {
  if (data_ != nullptr) ::munmap(data_, size_);
  ::close(descriptor_);
}

bool ShmSegment::lock(uint8_t which, Lock kind) {
  struct flock range = {};
  range.l_type = kind == Lock::kShared ? F_RDLCK : kind == Lock::kExclusive ? F_WRLCK : F_UNLCK;
  range.l_whence = SEEK_SET;
  range.l_start = which;
  range.l_len = 1;
  int answer = 0;
  do {
    answer = ::fcntl(descriptor_, F_OFD_SETLK, &range);
  } while (answer < 0 && errno == EINTR);
  return answer == 0;
}

bool ShmSegment::is_locked(uint8_t which) const {
  struct flock range = {};
  range.l_type = F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = which;
  range.l_len = 1;
  return ::fcntl(descriptor_, F_OFD_GETLK, &range) == 0 && range.l_type != F_UNLCK;
}

bool ShmSegment::is_named() const {
  struct stat facts = {};
  return ::fstat(descriptor_, &facts) == 0 && facts.st_nlink > 0;
}

void ShmSegment::remove() const {
  if (is_named()) shm_remove(name_);
}

std::vector<std::string> shm_names(const std::string& prefix) {
  std::vector<std::string> names;
  DIR* folder = ::opendir("/dev/shm");
  if (folder == nullptr) return names;
  while (const dirent* entry = ::readdir(folder))
    if (std::string_view(entry->d_name).starts_with(prefix)) names.emplace_back(entry->d_name);
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

size_t shm_size(const std::string& name) {
  struct stat facts = {};
  const int descriptor = ::shm_open(path_of(name).c_str(), O_RDONLY | O_CLOEXEC, 0);
  if (descriptor < 0) return 0;
  const bool is_known = ::fstat(descriptor, &facts) == 0;
  ::close(descriptor);
  return is_known ? static_cast<size_t>(facts.st_size) : 0;
}

void shm_remove(const std::string& name) { ::shm_unlink(path_of(name).c_str()); }

}  // namespace primerl
