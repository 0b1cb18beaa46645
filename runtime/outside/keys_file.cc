#include "runtime/outside/keys_file.h"

#include <utility>

#include "graph/base/counted.h"

namespace primerl {
Result<KeysFile> KeysFile::open(std::string file, std::vector<std::string> tenants,
                                std::string prefix) {
  KeysFile made;
  if (file.empty()) return made;
  made.file_ = std::move(file);
  made.tenants_ = std::move(tenants);
  made.prefix_ = std::move(prefix);
  // Before it is read: a write meanwhile is seen by the next look.
  made.read_ = file_facts(made.file_);
  ASSIGN_OR_RETURN(made.keys_, HttpKeys::read(made.file_, made.tenants_, made.prefix_));
  return made;
}

std::optional<Time> KeysFile::next_look() const {
  if (file_.empty()) return std::nullopt;
  return next_look_;
}

std::optional<std::string> KeysFile::look(Time now) {
  if (file_.empty() || now < next_look_) return std::nullopt;
  next_look_ = now + kFileFactsEvery;
  const FileFacts facts = file_facts(file_);
  if (facts == read_) return std::nullopt;
  read_ = facts;
  auto keys = HttpKeys::read(file_, tenants_, prefix_);
  if (!keys.ok())
    return fmt::format("the keys that were read before stay: {}", keys.error().text());
  keys_ = *std::move(keys);
  return fmt::format("read {} of {} again", counted(keys_.count(), "key"), file_);
}

}  // namespace primerl
