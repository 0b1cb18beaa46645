#include "runtime/cli/outside_asker.h"

#include <algorithm>
#include <chrono>

#include "graph/base/real_clock.h"
#include "runtime/backends/outside_backend.h"
#include "runtime/control/stop_signals.h"
#include "runtime/program/output.h"

namespace primerl {
namespace {

/// The longest wait before Ctrl-C is noticed.
constexpr std::chrono::milliseconds kSignalSlice{100};

/// Time between two lines about progress.
constexpr Duration kProgressEvery = Duration::seconds(5);

}  // namespace

OutsideAsker::OutsideAsker(OutsideSpec spec) : began_(steady_now()), reported_(began_) {
  for (OutsidePool& pool : spec.pools) {
    pool.num_workers = 1;
    names_.push_back(pool.name);
    patience_ = std::max(patience_, pool.start_timeout + pool.call_timeout * 4);
  }
  outside_ = make_outside(spec, [this](std::string_view line) {
    const std::lock_guard lock(mutex_);
    last_line_ = line;
  });
  outside_->set_wake([this] {
    const std::lock_guard lock(mutex_);
    has_news_ = true;
    changed_.notify_all();
  });
}

// First of all, because its thread calls the functions above.
OutsideAsker::~OutsideAsker() { outside_.reset(); }

Result<std::string> OutsideAsker::ask(int32_t pool, uint64_t session, bool is_whole,
                                      std::string body) {
  OutsideCall call;
  call.id = ++num_calls_;
  call.pool = static_cast<uint32_t>(pool);
  call.session = session;
  call.is_whole = is_whole;
  call.body = std::move(body);
  RETURN_IF_ERROR(outside_->ask(std::move(call)));
  const auto until = deadline_after(patience_);
  while (true) {
    report(pool);
    RETURN_IF_ERROR(outside_->step());
    for (OutsideAnswer& answer : outside_->receive_answers()) {
      if (answer.id != num_calls_) continue;
      if (answer.end == OutsideEnd::kDone) return std::move(answer.body);
      return error(Code::kInvalid, "{}",
                   answer.end == OutsideEnd::kNeedsHistory ? "its worker ended" : answer.body);
    }
    if (SignalCounter::count() > 0) return error(Code::kCancelled, "interrupted");
    std::unique_lock lock(mutex_);
    const bool has_news = changed_.wait_for(lock, kSignalSlice, [this] { return has_news_; });
    if (!has_news && std::chrono::steady_clock::now() >= until)
      return error(Code::kDeadline,
                   "no answer within {}: start_timeout and four times environment_timeout",
                   to_string(patience_))
          .note(last_line_.empty() ? "its workers wrote nothing" : "last line: " + last_line_);
    has_news_ = false;
  }
}

void OutsideAsker::report(int32_t pool) {
  const Time now = steady_now();
  if (now - reported_ < kProgressEvery) return;
  reported_ = now;
  std::unique_lock lock(mutex_);
  const std::string line = last_line_.empty() ? "" : "; its last line: " + last_line_;
  lock.unlock();
  complain("{}: waiting for {}, call {}, {:.0f} s so far (at most {} a call){}\n", subject_,
           names_[static_cast<size_t>(pool)], num_calls_, (now - began_).to_seconds(),
           to_string(patience_), line);
}

}  // namespace primerl
