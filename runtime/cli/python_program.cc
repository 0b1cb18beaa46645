#include "runtime/cli/python_program.h"

#include <unistd.h>

#include <cstdlib>
#include <system_error>

#include "runtime/program/programs.h"

namespace primerl {

namespace fs = std::filesystem;

Result<fs::path> find_python() {
  std::error_code fault;
  if (const char* named = std::getenv("PRIMERL_PYTHON"); named != nullptr && *named != '\0') {
    if (::access(named, X_OK) == 0) return fs::path(named);
    return error(Code::kNotFound, "PRIMERL_PYTHON is '{}', which is no program", named)
        .note("name a Python that has the packages torch and transformers");
  }
  if (const auto examples = examples_folder(); examples.ok())
    if (const auto own = examples->parent_path() / ".venv/bin/python"; fs::exists(own, fault))
      return own;
  for (const char* path : {"/usr/bin/python3", "/usr/local/bin/python3"})
    if (::access(path, X_OK) == 0) return fs::path(path);
  return error(Code::kNotFound, "there is no python3 on this machine")
      .note("install Python, or name one in PRIMERL_PYTHON");
}

}  // namespace primerl
