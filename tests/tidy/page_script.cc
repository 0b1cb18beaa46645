#include "tests/tidy/page_script.h"

#include <regex>

namespace primerl::tidy {
namespace {

using Kind = PageStep::Kind;

std::string quoted(const std::string& text) {
  return "'" + std::regex_replace(text, std::regex("'"), "'\\''") + "'";
}

/// Lines until `PAGE_END` go to the standard input of `command`.
std::string with_input(const std::string& command, const std::string& text) {
  return command + " <<'PAGE_END'\n" + text + "PAGE_END\n";
}

/// The commands of a step as a file `step.sh`; fails where the change changes nothing.
std::string write_commands(const PageStep& step) {
  std::string script = with_input("cat >step.sh", step.block.text);
  if (step.change.empty()) return script;
  return script + "cp step.sh written.sh\nsed -E -i " + quoted(step.change) +
         " step.sh\n! cmp -s step.sh written.sh || { echo 'the change of the marker changes "
         "nothing'; exit 1; }\n";
}

/// Drains what runs in the background, which may have ended by itself.
constexpr const char* kEndBackground =
    "if [ -n \"$background\" ]; then\n"
    "  kill -INT -- \"-$background\" 2>/dev/null || true\n"
    "  code=0; wait \"$background\" || code=$?\n"
    "  [ $code = 0 ] || [ $code = 130 ] || { cat background.txt; exit 1; }\n"
    "  background=\n"
    "fi\n";

/// It has begun when the status line shows a step.
constexpr const char* kStartBackground =
    ": >background.txt\n"
    "set -m\n"
    "bash -eu step.sh >background.txt 2>&1 & background=$!\n"
    "set +m\n"
    "grep -m1 -q '^step ' < <(tail -n +1 -f --pid=$background background.txt) ||\n"
    "  { cat background.txt; exit 1; }\n";

constexpr const char* kInterrupt =
    "kill -INT -- \"-$background\"\n"
    "code=0; wait \"$background\" || code=$?\n"
    "background=\n"
    "[ $code = 130 ] || { cat background.txt; echo \"exit code $code, not 130\"; exit 1; }\n";

std::string expect_code(int code) {
  const std::string wanted = std::to_string(code);
  return "set +e\n(set -e; source ./step.sh)\ncode=$?\nset -e\n[ $code = " + wanted +
         " ] || { echo \"exit code $code, not " + wanted + "\"; exit 1; }\n";
}

std::string script_of(const PageStep& step) {
  switch (step.kind) {
    case Kind::kNotRun:
      return "";
    case Kind::kFile:
      return with_input(
          "mkdir -p \"$(dirname " + quoted(step.file) + ")\" && cat >" + quoted(step.file),
          step.block.text);
    case Kind::kBackground:
      return kEndBackground + write_commands(step) + kStartBackground;
    case Kind::kInterrupted:
      return kEndBackground + write_commands(step) + kStartBackground + kInterrupt;
    case Kind::kRun:
      return write_commands(step) +
             (step.exit_code == 0 ? "source ./step.sh\n" : expect_code(step.exit_code));
  }
  return "";
}

}  // namespace

std::string place_of(const CodeBlock& block) {
  return block.path + ":" + std::to_string(block.line);
}

std::vector<PageStep> steps_of(const SourceFile& document) {
  static const std::regex with_code("run exit=([0-9]+)"), with_change("run with: (.+)"),
      left_out("not run: (.+)"), to_file("file: (\\S+)");
  std::vector<PageStep> steps;
  for (auto& block : code_blocks(document)) {
    const std::string marker = block.marker;
    std::smatch match;
    PageStep step;
    if (std::regex_match(marker, match, to_file)) {
      step.kind = Kind::kFile;
      step.file = match[1];
    } else if (block.language != "sh") {
      continue;
    } else if (std::regex_match(marker, match, with_code)) {
      step.exit_code = std::stoi(match[1]);
    } else if (std::regex_match(marker, match, with_change)) {
      step.change = match[1];
    } else if (marker == "background" || marker == "interrupted") {
      step.kind = marker == "background" ? Kind::kBackground : Kind::kInterrupted;
    } else if (!marker.empty()) {
      step.kind = Kind::kNotRun;
      if (std::regex_match(marker, match, left_out)) step.reason = match[1];
      if (marker == "do") step.reason = "guide_test follows it in a copy of the tree";
    }
    step.block = std::move(block);
    steps.push_back(std::move(step));
  }
  return steps;
}

std::string script_of(const std::vector<PageStep>& steps) {
  std::string script = "set -euo pipefail\nbackground=\n";
  for (const PageStep& step : steps)
    script += "echo '@@ " + place_of(step.block) + "' >&2\n" + script_of(step);
  return script + kEndBackground;
}

}  // namespace primerl::tidy
