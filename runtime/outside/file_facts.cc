#include "runtime/outside/file_facts.h"

#include <sys/stat.h>

namespace primerl {
namespace {

int64_t nanoseconds_of(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

FileFacts file_facts(const std::string& file) {
  struct stat found {};
  if (::stat(file.c_str(), &found) != 0) return {};
  return {found.st_ino, found.st_size, nanoseconds_of(found.st_mtim),
          nanoseconds_of(found.st_ctim)};
}

}  // namespace primerl
