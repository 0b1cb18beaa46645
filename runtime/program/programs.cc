#include "runtime/program/programs.h"

#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "graph/base/process.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

fs::path own_folder() {
  std::error_code fault;
  const fs::path program = fs::read_symlink("/proc/self/exe", fault);
  return fault ? fs::path(".") : program.parent_path();
}

}  // namespace

Result<fs::path> worker_program() {
  const char* named = std::getenv("PRIMERL_WORKER");
  const fs::path program =
      named != nullptr && *named != '\0' ? fs::path(named) : own_folder() / "primerl-worker";
  if (::access(program.c_str(), X_OK) == 0) return program;
  return error(Code::kNotFound, "no program '{}'", program.string())
      .note("build it with `make build`, or name it in PRIMERL_WORKER");
}

Result<fs::path> examples_folder() {
  const std::vector<fs::path> places = {own_folder() / "../../examples",
                                        own_folder() / "../share/primerl-graph/examples",
                                        fs::path(PRIMERL_EXAMPLES_FOLDER)};
  std::error_code fault;
  for (const auto& place : places)
    if (fs::is_directory(place, fault)) return fs::weakly_canonical(place, fault);
  return error(Code::kNotFound, "no examples folder beside this program");
}

std::optional<double> program_age_seconds() {
  const int64_t ticks = start_ticks(::getpid());
  timespec now{};
  if (ticks == 0 || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return std::nullopt;
  const double seconds = static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  const double age =
      seconds - static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return std::round(age * 100) / 100;
}

Error exec_worker(const std::vector<std::string>& arguments) {
  auto program = worker_program();
  if (!program.ok()) return std::move(program).error();
  std::vector<std::string> all{program->string()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> words;
  for (auto& word : all) words.push_back(word.data());
  words.push_back(nullptr);
  ::execv(program->c_str(), words.data());
  return error(Code::kIo, "starting '{}': {}", program->string(), std::strerror(errno));
}

}  // namespace primerl
