/// A page as its reader follows it: every `sh` block of a document, as one bash session in one
/// folder. A block without a marker is run as it is written and must succeed. A line above it may
/// change that:
///
///   <!-- run exit=2 -->            it must end with that code
///   <!-- run with: s/200/4/ -->    run after this change (sed -E), which must change something
///   <!-- background -->            runs while the blocks after it are run, then is drained
///   <!-- interrupted -->           gets Ctrl-C when it shows its first step, and must exit with
///   130
///   <!-- file: PATH -->            of any language: written to PATH in the folder
///   <!-- not run: REASON -->       needs what a test does not have
///   <!-- do -->                    followed by guide_test, in a copy of the tree
#pragma once

#include <string>
#include <vector>

#include "tests/tidy/markdown.h"

namespace primerl::tidy {

struct PageStep {
  enum class Kind { kRun, kBackground, kInterrupted, kFile, kNotRun };
  Kind kind = Kind::kRun;
  CodeBlock block;
  int exit_code = 0;
  std::string change;  // of kRun: a sed script; empty = none
  std::string reason;  // of kNotRun
  std::string file;    // of kFile
};

/// The steps of a reader of `document`, in order. An unknown marker of an `sh` block gives a step
/// that is not run and whose reason is empty.
std::vector<PageStep> steps_of(const SourceFile& document);

/// "docs/how-to/x.md:12"
std::string place_of(const CodeBlock& block);

/// The session. It prints "@@ PLACE" before each step, on stderr, and ends at the first that fails.
std::string script_of(const std::vector<PageStep>& steps);

}  // namespace primerl::tidy
