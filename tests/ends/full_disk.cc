// Preloaded (LD_PRELOAD) into programs under test: calls that need space on the disk fail with
// ENOSPC, as the DiskState says that PRIMERL_TEST_DISK maps. A refused write may still take a part
// of its bytes, as on a real disk.
#include <dlfcn.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/ends/disk_state.h"

namespace {

using primerl::DiskState;

DiskState* mapped_state() {
  const char* const file = std::getenv(primerl::kDiskVariable);
  if (file == nullptr) return nullptr;
  const int fd = ::open(file, O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  void* const at = ::mmap(nullptr, sizeof(DiskState), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  return at == MAP_FAILED ? nullptr : static_cast<DiskState*>(at);
}

DiskState* state = nullptr;
__attribute__((constructor)) void map_state() { state = mapped_state(); }

template <class Function>
Function* next(Function*& known, const char* name) {
  if (known == nullptr) known = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
  return known;
}

uint64_t drawn(uint64_t number) {
  uint64_t x = state->seed * 0x9E3779B97F4A7C15U + number;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

bool refuse() {
  uint64_t refused = state->num_refused.load();
  const uint64_t number = state->num_calls.load();
  do {
    if (refused >= state->refusals_max.load()) return false;
    if (refused > 0 && drawn(number) % 100 >= state->percent) return false;
  } while (!state->num_refused.compare_exchange_weak(refused, refused + 1));
  errno = ENOSPC;
  return true;
}

/// `path` is absolute. Allocates nothing: a fatal signal's handler may be writing.
bool is_refused(const char* path) {
  const size_t length = std::strlen(state->folder);
  if (std::strncmp(path, state->folder, length) != 0 || path[length] != '/') return false;
  const bool fits = ::fnmatch(state->files, path + length + 1, 0) == 0;
  const bool was_full = state->num_calls.load() >= state->calls_before;
  if (!fits && !(state->is_whole != 0 && was_full && state->num_refused.load() > 0)) return false;
  if (state->num_calls.fetch_add(1) < state->calls_before) return false;
  return refuse();
}

bool is_refused(int fd) {
  if (state == nullptr) return false;
  const int before = errno;
  char link[32], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t length = ::readlink(link, path, sizeof path - 1);
  errno = before;
  if (length <= 0) return false;
  path[length] = '\0';
  return is_refused(path);
}

/// Whether a call that creates `path` is refused; its folder exists.
bool is_new_refused(const char* path) {
  if (state == nullptr) return false;
  if (path[0] == '/') return is_refused(path);
  char whole[PATH_MAX];
  if (::getcwd(whole, sizeof whole) == nullptr) return false;
  const size_t length = std::strlen(whole);
  std::snprintf(whole + length, sizeof whole - length, "/%s", path);
  return is_refused(whole);
}

bool is_open_refused(const char* path, int flags) {
  return (flags & O_CREAT) != 0 && ::access(path, F_OK) != 0 && is_new_refused(path);
}

/// Bytes that a refused write still takes.
size_t part_of(size_t size) {
  return size < 2 ? 0 : drawn(state->num_refused.load()) % 3 == 0 ? 0 : drawn(size) % size;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static int (*known)(const char*, int, ...);
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return is_open_refused(path, flags) ? -1 : next(known, "open")(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  static int (*known)(const char*, int, ...);
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return is_open_refused(path, flags) ? -1 : next(known, "open64")(path, flags, mode);
}

FILE* fopen(const char* path, const char* mode) {
  static FILE* (*known)(const char*, const char*);
  const bool creates = mode[0] != 'r';
  return is_open_refused(path, creates ? O_CREAT : 0) ? nullptr : next(known, "fopen")(path, mode);
}

FILE* fopen64(const char* path, const char* mode) {
  static FILE* (*known)(const char*, const char*);
  const bool creates = mode[0] != 'r';
  return is_open_refused(path, creates ? O_CREAT : 0) ? nullptr
                                                      : next(known, "fopen64")(path, mode);
}

size_t fwrite(const void* bytes, size_t size, size_t count, FILE* file) {
  static size_t (*known)(const void*, size_t, size_t, FILE*);
  return is_refused(::fileno(file)) ? 0 : next(known, "fwrite")(bytes, size, count, file);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static ssize_t (*known)(int, const void*, size_t);
  if (!is_refused(fd)) return next(known, "write")(fd, bytes, size);
  const size_t part = part_of(size);
  return part == 0 ? -1 : next(known, "write")(fd, bytes, part);
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) {
  static ssize_t (*known)(int, const void*, size_t, off_t);
  if (!is_refused(fd)) return next(known, "pwrite")(fd, bytes, size, at);
  const size_t part = part_of(size);
  return part == 0 ? -1 : next(known, "pwrite")(fd, bytes, part, at);
}

ssize_t writev(int fd, const iovec* parts, int count) {
  static ssize_t (*known)(int, const iovec*, int);
  return is_refused(fd) ? -1 : next(known, "writev")(fd, parts, count);
}

int fsync(int fd) {
  static int (*known)(int);
  return is_refused(fd) ? -1 : next(known, "fsync")(fd);
}

int fdatasync(int fd) {
  static int (*known)(int);
  return is_refused(fd) ? -1 : next(known, "fdatasync")(fd);
}

int ftruncate(int fd, off_t size) {
  static int (*known)(int, off_t);
  return is_refused(fd) ? -1 : next(known, "ftruncate")(fd, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
  static int (*known)(int, off_t, off_t);
  return is_refused(fd) ? ENOSPC : next(known, "posix_fallocate")(fd, at, size);
}

int rename(const char* from, const char* to) {
  static int (*known)(const char*, const char*);
  return is_new_refused(to) ? -1 : next(known, "rename")(from, to);
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  static int (*known)(int, const char*, int, const char*, unsigned);
  if (to_fd == AT_FDCWD && is_new_refused(to)) return -1;
  return next(known, "renameat2")(from_fd, from, to_fd, to, flags);
}

int mkdir(const char* path, mode_t mode) {
  static int (*known)(const char*, mode_t);
  if (::access(path, F_OK) != 0 && is_new_refused(path)) return -1;
  return next(known, "mkdir")(path, mode);
}

int link(const char* from, const char* to) {
  static int (*known)(const char*, const char*);
  return is_new_refused(to) ? -1 : next(known, "link")(from, to);
}

}  // extern "C"
