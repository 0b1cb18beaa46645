/// What another program says before it ends: it is started without a shell, so that names with any
/// character are safe, and heard within a bound of time and of text. Plain function, any thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "graph/base/result.h"

namespace primerl {

struct ProgramOutput {
  int exit_code = -1;  // -1: a signal ended it
  /// Stdout and stderr, without the line ends at their end. Apart, because a program that is well
  /// may say something on stderr, such as a library's warning.
  std::string out, err;

  /// For a message of why it failed.
  const std::string& why() const { return err.empty() ? out : err; }
};

/// Of each stream; what is beyond is not kept.
inline constexpr size_t kProgramTextMax = size_t{64} << 10;
/// A worker loads libtorch first, which a cold disk takes tens of seconds for.
inline constexpr Duration kProgramWaitMax = Duration::seconds(120);

/// Of `program ARGUMENTS`, with an empty stdin. kIo: it cannot be started. kDeadline: it had not
/// ended after `most`, and was killed, with what it had said.
Result<ProgramOutput> output_of(const std::filesystem::path& program,
                                const std::vector<std::string>& arguments,
                                Duration most = kProgramWaitMax);

}  // namespace primerl
