#include "runtime/monitor/status_line.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "graph/base/terminal_text.h"

namespace primerl {
namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

/// Whether a write of PIPE_BUF bytes does not block. A closed reader has space: the write fails.
bool has_space(int fd, Duration at_most) {
  pollfd one{fd, POLLOUT, 0};
  const int ready = ::poll(&one, 1, static_cast<int>(at_most.to_milliseconds()));
  return ready != 0;  // after an error or a signal the write says more
}

bool locale_is_utf8() {
  // The first variable that is set decides, as in setlocale(3).
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    std::string value(environment(name));
    if (value.empty()) continue;
    std::transform(value.begin(), value.end(), value.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return value.find("utf-8") != std::string::npos || value.find("utf8") != std::string::npos;
  }
  return false;
}

}  // namespace

Terminal terminal_of(int fd) {
  Terminal terminal;
  terminal.is_tty = ::isatty(fd) == 1 && environment("TERM") != "dumb" && environment("CI").empty();
  terminal.color = terminal.is_tty && environment("NO_COLOR").empty();
  const auto force = environment("CLICOLOR_FORCE");
  if (!force.empty() && force != "0") terminal.color = true;
  terminal.utf8 = locale_is_utf8();
  winsize size{};
  if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.columns = size.ws_col;
  return terminal;
}

std::string short_count(double count) {
  if (!std::isfinite(count) || count < 0) return "-";
  if (count < 999.5) return fmt::format("{:.0f}", count);
  if (count < 999.5e3) return fmt::format("{:.{}f}k", count / 1e3, count < 99.95e3 ? 1 : 0);
  return fmt::format("{:.1f}M", count / 1e6);
}

std::string short_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  const auto whole = static_cast<int64_t>(std::llround(std::min(seconds, 1e9)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string status_text(const StatusFacts& facts) {
  std::string text;
  if (!facts.tenant.empty()) text += facts.tenant + "  ";
  if (!facts.phase.empty()) text += facts.phase + "  ";
  text += fmt::format("{} {}", facts.counted, facts.step);
  if (!facts.has_no_end) text += fmt::format("/{}", facts.max_steps);
  if (!facts.has_metrics) return text;
  text += fmt::format("  {} {:.3f}", facts.score_name, facts.score);
  if (facts.has_staleness)
    text += fmt::format("  stale {:.1f} (max {:.0f})", facts.off_policy_mean, facts.off_policy_max);
  text += fmt::format("  {} tok/s", short_count(facts.tokens_per_second));
  if (!facts.alarms.empty()) text += fmt::format("  alarm {}", facts.alarms);
  if (facts.seconds_per_step > 0 && !facts.has_no_end && facts.step < facts.max_steps)
    text += fmt::format(
        "  ETA {}",
        short_duration(facts.seconds_per_step * static_cast<double>(facts.max_steps - facts.step)));
  return text;
}

void StatusLine::update(Time now, const StatusFacts& facts) {
  const Duration pause = terminal_.is_tty ? kRewriteEvery : kPlainEvery;
  if (shown_at_ && now - *shown_at_ < pause && facts.phase == shown_phase_) return;
  shown_at_ = now;
  shown_phase_ = facts.phase;
  std::string text = status_text(facts);
  if (!terminal_.is_tty) {
    write(text + "\n");
    return;
  }
  // A line that wraps cannot be rewritten.
  const auto most = static_cast<size_t>(std::max(terminal_.columns - 1, 10));
  if (text.size() > most) text.resize(most);
  shown_ = std::move(text);
  write("\r\x1b[K" + shown_);
}

void StatusLine::say(std::string_view line) {
  const std::string text = terminal_text(line) + "\n";
  if (shown_.empty()) return write(text);
  write("\r\x1b[K" + text + shown_);
}

void StatusLine::clear() {
  if (shown_.empty()) return;
  shown_.clear();
  write("\r\x1b[K");
}

void StatusLine::write(std::string_view text) {
  if (num_dropped_ > 0) {
    // The first part of the last text may have been written.
    const std::string missing =
        fmt::format("\n{} lines are missing here: they were not read in time\n", num_dropped_);
    if (!has_space(fd_, Duration()) || !write_whole(missing)) {
      ++num_dropped_;
      return;
    }
    num_dropped_ = 0;
  }
  if (!write_whole(text)) ++num_dropped_;
}

bool StatusLine::write_whole(std::string_view text) {
  while (!text.empty()) {
    if (!has_space(fd_, kReadMax)) return false;
    const size_t size = std::min<size_t>(text.size(), PIPE_BUF);
    const ssize_t written = ::write(fd_, text.data(), size);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) return false;
    if (written <= 0) return true;  // the terminal is closed; the run continues
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace primerl
