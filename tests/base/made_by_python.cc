#include "tests/base/made_by_python.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace primerl::testing {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

/// Locked by one process at a time; the system releases it when the process ends.
class FileLock {
 public:
  explicit FileLock(const fs::path& file)
      : descriptor_(::open(file.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0 || ::flock(descriptor_, LOCK_EX) != 0)
      throw std::runtime_error("cannot lock " + file.string());
  }
  ~FileLock() { ::close(descriptor_); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

std::optional<fs::path> made_by_python(const std::string& python, const std::string& module,
                                       const std::string& script, const std::string& name) {
  const fs::path source = fs::path(PRIMERL_SOURCE_DIR) / script;
  const fs::path folder = fs::path(PRIMERL_BINARY_DIR) / name;
  fs::create_directories(folder);
  const FileLock lock(folder / "lock");
  const fs::path stamp = folder / "made_by.py", log = folder / "log";
  if (fs::exists(stamp) && read_text(stamp) == read_text(source)) return folder;
  const std::string quiet = " > '" + log.string() + "' 2>&1";
  if (std::system(("'" + python + "' -c 'import " + module + "'" + quiet).c_str()) != 0)
    return std::nullopt;
  if (std::system(("'" + python + "' '" + source.string() + "' '" + folder.string() + "'" + quiet)
                      .c_str()) != 0)
    throw std::runtime_error(script + " failed:\n" + read_text(log));
  fs::copy_file(source, stamp, fs::copy_options::overwrite_existing);
  return folder;
}

}  // namespace primerl::testing
