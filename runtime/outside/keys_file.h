/// KeysFile: the keys of a listener. They are read again when their file has changed, so a key can
/// be added or withdrawn while a run trains.
///
/// The file is looked at, not opened, at most every kFileFactsEvery. If it cannot be read or is not
/// valid, the keys that were read before stay. Not thread-safe: lives on the I/O thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "runtime/outside/file_facts.h"
#include "runtime/outside/http_keys.h"

namespace primerl {

class KeysFile {
 public:
  /// Reads `file`; empty: everyone may use the listener, and there is nothing to look at.
  static Result<KeysFile> open(std::string file, std::vector<std::string> tenants,
                               std::string prefix = {});

  const HttpKeys& keys() const { return keys_; }
  /// When look() has something to do; none: never.
  std::optional<Time> next_look() const;
  /// Looks at the file if it is time to. A line for people if its keys were read, or could not be;
  /// each change is tried once.
  std::optional<std::string> look(Time now);

 private:
  std::string file_;
  std::vector<std::string> tenants_;
  std::string prefix_;  // of each key
  HttpKeys keys_;
  FileFacts read_;  // of the file when it was last tried
  Time next_look_;
};

}  // namespace primerl
