#include "runtime/outside/keys_file.h"

#include <sys/stat.h>

#include <utility>

#include "graph/base/counted.h"

namespace primerl {
namespace {

int64_t nanoseconds_of(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

Result<KeysFile> KeysFile::open(std::string file, std::vector<std::string> tenants,
                                std::string prefix) {
  KeysFile made;
  if (file.empty()) return made;
  made.file_ = std::move(file);
  made.tenants_ = std::move(tenants);
  made.prefix_ = std::move(prefix);
  // Before it is read: a write meanwhile is seen by the next look.
  made.read_ = made.facts_now();
  ASSIGN_OR_RETURN(made.keys_, HttpKeys::read(made.file_, made.tenants_, made.prefix_));
  return made;
}

std::optional<Time> KeysFile::next_look() const {
  if (file_.empty()) return std::nullopt;
  return next_look_;
}

std::optional<std::string> KeysFile::look(Time now) {
  if (file_.empty() || now < next_look_) return std::nullopt;
  next_look_ = now + kKeysFileEvery;
  const Facts facts = facts_now();
  if (facts == read_) return std::nullopt;
  read_ = facts;
  auto keys = HttpKeys::read(file_, tenants_, prefix_);
  if (!keys.ok())
    return fmt::format("the keys that were read before stay: {}", keys.error().text());
  keys_ = *std::move(keys);
  return fmt::format("read {} of {} again", counted(keys_.count(), "key"), file_);
}

KeysFile::Facts KeysFile::facts_now() const {
  struct stat found {};
  if (::stat(file_.c_str(), &found) != 0) return {};
  return {found.st_ino, found.st_size, nanoseconds_of(found.st_mtim),
          nanoseconds_of(found.st_ctim)};
}

}  // namespace primerl
