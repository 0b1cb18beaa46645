#include "runtime/control/run_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "runtime/wire/agent_frames.h"

namespace primerl {
namespace {

/// Whether a name stays inside its folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name[0] != '.' && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

}  // namespace

Status check_names(const PrepareRun& order) {
  struct Name {
    std::string_view what;
    const std::string& text;
    size_t bytes_max;
  };
  const Name names[] = {{"run id", order.run_id, kRunIdBytesMax},
                        {"graph", order.graph, kOrderWordBytesMax},
                        {"host", order.host, kOrderWordBytesMax},
                        {"run folder", order.run_folder, kRunFolderBytesMax},
                        {"socket folder", order.socket_folder, kSocketFolderBytesMax},
                        {"address", order.listen, kOrderWordBytesMax}};
  for (const auto& [what, text, bytes_max] : names) {
    if (text.size() > bytes_max)
      return error(Code::kInvalid, "the name of the {} has {} bytes, at most {} are allowed", what,
                   text.size(), bytes_max);
    if (std::any_of(text.begin(), text.end(),
                    [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }))
      return error(Code::kInvalid, "the name of the {} has characters that are no text", what);
  }
  if (!is_plain_name(order.socket_folder))
    return error(Code::kInvalid, "'{}' is no name for a folder of sockets", order.socket_folder);
  return ok();
}

Status check_folder(const PrepareRun& order, uint64_t challenge) {
  const auto not_shared = [&](std::string_view why) {
    return error(Code::kNotFound, "the run folder '{}' is not the control plane's here: {}",
                 order.run_folder, why)
        .note(
            "every machine of a run needs the same folder under the same path: put it on a "
            "shared file system, e.g. with --out /shared/runs/NAME");
  };
  const std::filesystem::path folder(order.run_folder);
  if (!folder.is_absolute()) return not_shared("it is no absolute path");
  const auto file = folder / challenge_file(challenge);
  // Follows no symlink, and does not block on a pipe that has no writer.
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return not_shared(fmt::format("'{}': {}", file.string(), std::strerror(errno)));
  struct stat about {};
  const std::string expected = challenge_text(challenge);
  std::string text(expected.size(), '\0');
  const bool is_known = ::fstat(fd, &about) == 0;
  const bool is_plain =
      is_known && S_ISREG(about.st_mode) && about.st_size == static_cast<off_t>(expected.size());
  const auto num_read = is_plain ? ::read(fd, text.data(), text.size()) : -1;
  ::close(fd);
  if (is_known && about.st_uid != ::geteuid())
    return error(Code::kInvalid, "'{}' is not of this agent's user (user id {}, not {})",
                 file.string(), about.st_uid, ::geteuid())
        .note("the agent and the run need the same user");
  if (!is_plain) return not_shared("it is no plain file of the challenge's size");
  if (num_read != static_cast<ssize_t>(text.size()) || text != expected)
    return not_shared("the control plane has written otherwise");
  return ok();
}

struct RunCheck::Look {
  std::mutex mutex;
  std::optional<Result<std::filesystem::path>> found;
};

Result<std::unique_ptr<RunCheck>> RunCheck::begin(PrepareRun order, uint64_t challenge,
                                                  Machine machine, const Looks& looks, Time now) {
  if (looks->load() >= kLooksMax)
    return error(Code::kUnavailable, "{} run folders are being looked at already", kLooksMax)
        .note("is the file system of one of them hanging?");
  ++*looks;
  auto look = std::make_shared<Look>();
  std::unique_ptr<RunCheck> check(new RunCheck(order, look, now + kLookMax));
  std::thread([look, looks, challenge, order = std::move(order), machine = std::move(machine)] {
    const auto find = [&]() -> Result<std::filesystem::path> {
      RETURN_IF_ERROR(check_folder(order, challenge));
      if (machine.check_run) RETURN_IF_ERROR(machine.check_run(order));
      return machine.find_worker();
    };
    auto found = find();
    const std::lock_guard lock(look->mutex);
    look->found = std::move(found);
    --*looks;
  }).detach();
  return check;
}

std::optional<Result<std::filesystem::path>> RunCheck::poll(Time now) const {
  const std::lock_guard lock(look_->mutex);
  if (look_->found) return look_->found;
  if (now < give_up_) return std::nullopt;
  return Result<std::filesystem::path>(error(Code::kDeadline,
                                             "looking at the run folder '{}' took longer than {}",
                                             order_.run_folder, to_string(kLookMax)));
}

}  // namespace primerl
