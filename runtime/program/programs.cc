#include "runtime/program/programs.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
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

std::vector<std::pair<std::string, std::string>> worker_environment(
    const std::vector<std::string>& given) {
  for (const char* name : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}) {
    const std::string start = fmt::format("{}=", name);
    const bool is_given = std::any_of(given.begin(), given.end(), [&start](const auto& variable) {
      return variable.starts_with(start);
    });
    if (is_given || std::getenv(name) != nullptr) return {};
  }
  return {std::pair<std::string, std::string>("OMP_WAIT_POLICY", "passive")};
}

Error exec_worker(const std::vector<std::string>& arguments) {
  auto program = worker_program();
  if (!program.ok()) return std::move(program).error();
  for (const auto& [name, value] : worker_environment()) ::setenv(name.c_str(), value.c_str(), 1);
  std::vector<std::string> all{program->string()};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> words;
  for (auto& word : all) words.push_back(word.data());
  words.push_back(nullptr);
  ::execv(program->c_str(), words.data());
  return error(Code::kIo, "starting '{}': {}", program->string(), std::strerror(errno));
}

}  // namespace primerl
