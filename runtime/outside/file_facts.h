/// FileFacts: what differs after a write of a file, or after another file has its name. So a file
/// that counts while a run trains (keys, certificates) is read again only when it has changed.
/// Plain functions, any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "graph/base/clock.h"

namespace primerl {

/// An I/O thread looks at such a file this often.
inline constexpr Duration kFileFactsEvery = Duration::seconds(1);

struct FileFacts {
  ino_t inode = 0;
  int64_t size = 0, modified_ns = 0, changed_ns = 0;
  friend bool operator==(const FileFacts&, const FileFacts&) = default;
};

/// Follows a link. All 0: there is no file.
FileFacts file_facts(const std::string& file);

}  // namespace primerl
