#include "tests/torch/reference_models.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

namespace primerl::testing {
namespace {

const std::filesystem::path kScript =
    std::filesystem::path(PRIMERL_SOURCE_DIR) / "tests/torch/make_models.py";

std::string read_text(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

/// Held by one process at a time; the system drops it when the process ends.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& file)
      : descriptor_(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
    CHECK(descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) == 0, "cannot lock " + file.string());
  }
  ~FileLock() { ::close(descriptor_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

std::filesystem::path reference_models() {
  const auto folder = std::filesystem::path(PRIMERL_BINARY_DIR) / "reference_models";
  std::filesystem::create_directories(folder);
  const FileLock lock(folder / "lock");
  const auto stamp = folder / "made_by.py";
  if (std::filesystem::exists(stamp) && read_text(stamp) == read_text(kScript)) return folder;
  const std::string command = std::string(PRIMERL_PYTHON) + " '" + kScript.string() + "' '" +
                              folder.string() + "' > '" + (folder / "log").string() + "' 2>&1";
  CHECK(std::system(command.c_str()) == 0,
        "make_models.py failed (it needs torch and transformers):\n" + read_text(folder / "log"));
  std::filesystem::copy_file(kScript, stamp, std::filesystem::copy_options::overwrite_existing);
  return folder;
}

const Json& reference(const std::string& name) {
  static std::map<std::string, Json> known;
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  const auto file = reference_models() / (name + ".json");
  return known.emplace(name, parse_json(read_text(file), file.string()).value()).first->second;
}

std::vector<double> transformers_logprobs(const std::filesystem::path& folder,
                                          const std::vector<int32_t>& ids) {
  std::string command = std::string(PRIMERL_PYTHON) + " '" + kScript.string() + "' --logprobs '" +
                        folder.string() + "'";
  for (const int32_t id : ids) command += " " + std::to_string(id);
  std::FILE* pipe = ::popen((command + " 2>/dev/null").c_str(), "r");
  CHECK(pipe != nullptr, "cannot start " + command);
  std::string text;
  std::array<char, 4096> part;
  while (const size_t got = std::fread(part.data(), 1, part.size(), pipe))
    text.append(part.data(), got);
  CHECK(::pclose(pipe) == 0, command + " failed");
  std::vector<double> logprobs;
  const Json values = parse_json(text, command).value();
  for (const auto& value : values.as_array()) logprobs.push_back(value.as_double());
  return logprobs;
}

}  // namespace primerl::testing
