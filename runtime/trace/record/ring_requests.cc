#include "runtime/trace/record/ring_requests.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <optional>

#include "graph/base/file_lock.h"
#include "graph/base/files.h"
#include "graph/base/json.h"
#include "graph/base/real_clock.h"
#include "runtime/trace/segment_files.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr int kDumpSignal = SIGUSR1;
constexpr auto kLookAgain = std::chrono::milliseconds(5);
constexpr std::string_view kLiveEnding = ".live";

/// Counts requests that no thread has read yet. Never closed, because a signal handler may be about
/// to write.
std::atomic<int> requests_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may take no lock");

void count_request(int) {
  const int before = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(requests_fd, &one, sizeof one);
  errno = before;
}

std::string machine_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

struct LiveRecorder {
  DumpedProcess facts;
  fs::path live_file, answer_file;
  std::string machine;
};

Result<LiveRecorder> read_live_file(const fs::path& file) {
  LiveRecorder recorder;
  recorder.live_file = file;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file));
  ASSIGN_OR_RETURN(const Json facts, parse_json(text, file.string()));
  ASSIGN_OR_RETURN(const int64_t pid, facts.get_int("pid"));
  ASSIGN_OR_RETURN(const int64_t incarnation, facts.get_int("incarnation"));
  ASSIGN_OR_RETURN(recorder.facts.process, facts.get_string("process"));
  ASSIGN_OR_RETURN(recorder.machine, facts.get_string("host"));
  // 0 and below would address process groups, and process 1 is never a worker.
  if (pid <= 1 || pid > INT32_MAX || incarnation < 0 || incarnation > UINT32_MAX)
    return error(Code::kCorrupt, "'{}' names process {} of incarnation {}", file.string(), pid,
                 incarnation);
  recorder.facts.pid = static_cast<pid_t>(pid);
  recorder.facts.incarnation = static_cast<uint32_t>(incarnation);
  recorder.answer_file =
      snapshot_path(file.parent_path(), recorder.facts.process, recorder.facts.incarnation);
  return recorder;
}

Result<std::vector<LiveRecorder>> find_live(const fs::path& folder) {
  std::vector<LiveRecorder> found;
  std::error_code fault;
  for (fs::directory_iterator it(folder, fault), end; !fault && it != end; it.increment(fault)) {
    if (it->path().extension() != kLiveEnding || !is_locked(it->path())) continue;
    ASSIGN_OR_RETURN(auto recorder, read_live_file(it->path()));
    if (recorder.machine != machine_name())
      return error(Code::kUnavailable, "process '{}' of the run is on the machine '{}'",
                   recorder.facts.process, recorder.machine)
          .note("ask for the dump there");
    found.push_back(std::move(recorder));
  }
  if (found.empty())
    return error(Code::kNotFound, "no process records into memory in '{}'", folder.string());
  std::ranges::sort(found, {}, [](const auto& each) { return each.facts.process; });
  return found;
}

/// A recorder's answer since `asked_ns`; none while it writes, or before it has read the request.
Result<std::optional<RingSnapshot>> read_answer(const LiveRecorder& recorder, int64_t asked_ns) {
  std::error_code fault;
  if (!fs::exists(recorder.answer_file, fault)) return std::optional<RingSnapshot>();
  ASSIGN_OR_RETURN(const std::string text, read_text_file(recorder.answer_file));
  ASSIGN_OR_RETURN(const Json facts, parse_json(text, recorder.answer_file.string()));
  ASSIGN_OR_RETURN(const int64_t begun_ns, facts.get_int("begun_ns"));
  if (begun_ns < asked_ns || facts.find("ended_ns") == nullptr)
    return std::optional<RingSnapshot>();
  if (const Json* why = facts.find("error"); why != nullptr && why->is_string())
    return error(Code::kUnavailable, "process '{}' could not write its dump: {}",
                 recorder.facts.process, why->as_string());
  RingSnapshot snapshot;
  for (const auto& [name, member] : {std::pair("first_segment", &RingSnapshot::first_segment),
                                     std::pair("last_segment", &RingSnapshot::last_segment),
                                     std::pair("bytes", &RingSnapshot::num_bytes)}) {
    ASSIGN_OR_RETURN(const int64_t value, facts.get_int(name));
    snapshot.*member = static_cast<uint64_t>(value);
  }
  return std::optional(snapshot);
}

Result<RingSnapshot> wait_for_answer(const LiveRecorder& recorder, int64_t asked_ns,
                                     Clock::time_point deadline, Duration wait_max) {
  while (true) {
    // In this order, so that the last answer before the recorder's end is seen.
    const bool is_alive = is_locked(recorder.live_file);
    ASSIGN_OR_RETURN(const auto answer, read_answer(recorder, asked_ns));
    if (answer) return *answer;
    if (!is_alive)
      return error(Code::kUnavailable, "process '{}' ended before it had written a dump",
                   recorder.facts.process);
    if (Clock::now() > deadline)
      return error(Code::kDeadline, "process '{}' (pid {}) has not answered within {}",
                   recorder.facts.process, recorder.facts.pid, to_string(wait_max));
    std::this_thread::sleep_for(kLookAgain);
  }
}

}  // namespace

void take_dump_signals() {
  if (requests_fd < 0) requests_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = count_request;
  action.sa_flags = SA_RESTART;
  ::sigaction(kDumpSignal, &action, nullptr);
}

Result<std::unique_ptr<RingRequests>> RingRequests::open(SegmentWriter& writer,
                                                         const fs::path& folder,
                                                         const std::string& process,
                                                         uint32_t incarnation) {
  RETURN_IF_ERROR(make_trace_folder(folder));
  const fs::path file = folder / fmt::format("{}.{}{}", process, incarnation, kLiveEnding);
  const int lock = ::open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (lock < 0) return io_error("creating", file, errno);
  const Json facts = Json::object()
                         .set("process", process)
                         .set("incarnation", incarnation)
                         .set("pid", static_cast<int64_t>(::getpid()))
                         .set("host", machine_name());
  // Written before it is locked: a reader that finds the lock finds the complete file.
  const Status written = system_files().write_file(file, facts.dump() + "\n");
  CHECK(requests_fd >= 0, "take_dump_signals() was not called, or the process has no descriptors");
  const int stop = ::eventfd(0, EFD_CLOEXEC);
  const bool is_locked_now = ::flock(lock, LOCK_EX) == 0;
  const int reason = errno;
  if (written.ok() && stop >= 0 && is_locked_now)
    return std::unique_ptr<RingRequests>(new RingRequests(writer, file, lock, stop));
  for (const int descriptor : {lock, stop})
    if (descriptor >= 0) ::close(descriptor);
  RETURN_IF_ERROR(written);
  return io_error("locking", file, reason);
}

RingRequests::RingRequests(SegmentWriter& writer, fs::path file, int lock, int stop)
    : writer_(writer), file_(std::move(file)), lock_(lock), stop_(stop) {
  thread_ = std::thread([this] { serve(); });
}

RingRequests::~RingRequests() {
  const uint64_t one = 1;
  CHECK(::write(stop_, &one, sizeof one) == sizeof one, "an event could not be written");
  thread_.join();
  std::error_code ignored;
  fs::remove(file_, ignored);
  fs::remove(file_.parent_path(), ignored);  // removes the folder only if it is empty
  for (const int descriptor : {lock_, stop_}) ::close(descriptor);
}

void RingRequests::serve() {
  pollfd watched[] = {{stop_, POLLIN, 0}, {requests_fd, POLLIN, 0}};
  while (true) {
    if (::poll(watched, std::size(watched), -1) < 0) continue;  // interrupted by a signal
    if (watched[0].revents != 0) return;
    // The result is written next to the segments, where the requester reads it.
    uint64_t num_requests = 0;
    if (::read(requests_fd, &num_requests, sizeof num_requests) == sizeof num_requests)
      (void)writer_.snapshot();
  }
}

Result<std::vector<DumpedProcess>> request_dump(const fs::path& folder, Duration wait_max) {
  ASSIGN_OR_RETURN(const auto recorders, find_live(folder));
  const int64_t asked_ns = steady_now().to_nanoseconds();
  const auto deadline = Clock::now() + std::chrono::nanoseconds(wait_max.to_nanoseconds());
  for (const auto& recorder : recorders)
    if (::kill(recorder.facts.pid, kDumpSignal) != 0 && errno != ESRCH)
      return error(Code::kUnavailable, "process '{}' (pid {}) cannot be asked: {}",
                   recorder.facts.process, recorder.facts.pid, std::strerror(errno));
  std::vector<DumpedProcess> dumped;
  for (const auto& recorder : recorders) {
    dumped.push_back(recorder.facts);
    ASSIGN_OR_RETURN(dumped.back().snapshot,
                     wait_for_answer(recorder, asked_ns, deadline, wait_max));
  }
  return dumped;
}

}  // namespace primerl
