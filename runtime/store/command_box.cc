#include "runtime/store/command_box.h"

#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "graph/base/files.h"
#include "graph/base/real_clock.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAskEnding = ".ask.json";
constexpr std::string_view kAnswerEnding = ".answer.json";
constexpr int kEventReadsMax = 64;  // of one look

fs::path file_of(const fs::path& folder, const std::string& id, std::string_view ending) {
  return folder / (id + std::string(ending));
}

void remove_quietly(const fs::path& file) {
  std::error_code ignored;
  fs::remove(file, ignored);
}

}  // namespace

/// The waiting requests, oldest name first. Entries that are not regular files are removed, because
/// reading a pipe would block the control plane.
std::vector<std::string> CommandInbox::look() {
  std::vector<std::string> ids;
  std::error_code fault;
  size_t num_seen = 0;
  for (fs::directory_iterator at(folder_, fault), end; !fault && at != end; at.increment(fault)) {
    if (++num_seen > kEntriesMax) break;
    const std::string name = at->path().filename().string();
    const auto ends_with = [&name](std::string_view ending) { return name.ends_with(ending); };
    std::error_code unknown;
    if (ends_with(kAnswerEnding)) {
      const std::string id = name.substr(0, name.size() - kAnswerEnding.size());
      if (std::find(answered_.begin(), answered_.end(), id) == answered_.end())
        remove_quietly(at->path());
    } else if (ends_with(kAskEnding)) {
      if (at->symlink_status(unknown).type() == fs::file_type::regular)
        ids.push_back(name.substr(0, name.size() - kAskEnding.size()));
      else
        remove_quietly(at->path());
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

void CommandInbox::watch() {
  if (watch_.get() >= 0) return;
  if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) return;
  Descriptor made(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  // Requests are moved into the folder when they are complete.
  if (made.get() >= 0 && ::inotify_add_watch(made.get(), folder_.c_str(), IN_MOVED_TO) >= 0)
    watch_ = std::move(made);
}

std::vector<CommandInbox::Ask> CommandInbox::take() {
  // The events only end the wait: look() finds what has changed.
  std::array<char, 4096> events;
  for (int i = 0; i < kEventReadsMax && watch_.get() >= 0; ++i)
    if (::read(watch_.get(), events.data(), events.size()) <= 0) break;
  std::vector<Ask> asks;
  for (const std::string& id : look()) {
    if (asks.size() == kAsksMax) break;
    const fs::path file = file_of(folder_, id, kAskEnding);
    const auto text = read_text_file(file, kAskBytesMax);
    remove_quietly(file);
    if (!text.ok()) continue;
    auto content = parse_json(*text, file.string());
    if (!content.ok()) continue;
    const auto pid = content->get_int("pid"), ticks = content->get_int("start_ticks");
    if (!pid.ok() || !ticks.ok() || *pid != self_.pid || *ticks != self_.start_ticks) continue;
    asks.push_back({id, std::move(content).value()});
  }
  return asks;
}

Status CommandInbox::answer(const std::string& id, const Json& answer) {
  if (answered_.size() == kAnswersMax) {
    remove_quietly(file_of(folder_, answered_.front(), kAnswerEnding));
    answered_.pop_front();
  }
  answered_.push_back(id);
  return replace_file(system_files(), file_of(folder_, id, kAnswerEnding), answer.dump() + "\n");
}

Result<Json> ask_run(const fs::path& run_folder, CommandedProcess control, Json content,
                     Duration timeout, const std::function<bool()>& is_alive,
                     const std::function<void()>& pause) {
  const fs::path folder = run_folder / "commands";
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
    return io_error("making", folder, errno);
  const std::string id =
      fmt::format("{:020}.{}", steady_now().to_nanoseconds(), static_cast<int64_t>(::getpid()));
  const fs::path question = file_of(folder, id, kAskEnding);
  const fs::path answered = file_of(folder, id, kAnswerEnding);
  content.set("pid", control.pid).set("start_ticks", control.start_ticks);
  RETURN_IF_ERROR(replace_file(system_files(), question, content.dump() + "\n"));
  const Time until = steady_now() + timeout;
  while (true) {
    // is_alive() comes first, because the run may answer and then end.
    const bool was_alive = is_alive();
    auto text = read_text_file(answered, CommandInbox::kAskBytesMax * 256);
    if (text.ok()) {
      remove_quietly(answered);
      return parse_json(*text, "the run's answer");
    }
    if (text.error().code() != Code::kNotFound) return text.error();
    const bool is_late = steady_now() >= until;
    if (was_alive && !is_late) {
      pause();
      continue;
    }
    remove_quietly(question);
    if (!was_alive) return error(Code::kUnavailable, "the run ended before it answered");
    return error(Code::kDeadline, "the run has not answered within {}", to_string(timeout));
  }
}

}  // namespace primerl
