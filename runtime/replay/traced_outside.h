/// TracedOutside: an Outside that records its answers, or repeats those of a record.
///
/// Every receive_answers() that returns something is one note of its step, or several if the
/// answers are larger than a message. A replay gives them and asks nothing. ResumingOutside gives
/// the answers of the record until the run resumes, and then asks for those that are missing.
/// Threads: those of Outside.
#pragma once

#include <map>
#include <memory>

#include "graph/outside.h"
#include "runtime/replay/traced_calls.h"

namespace primerl {

/// Calls without an answer, and when the newest was made.
struct OpenCalls {
  std::map<uint64_t, OutsideCall> calls;
  template <class F>
  static void fields(F& f) {
    f("calls", &OpenCalls::calls);
  }
};

/// Records the answers of `outside`.
std::shared_ptr<Outside> make_recording_outside(std::shared_ptr<Outside> outside, KeepAnswer keep);
/// Repeats the record.
std::shared_ptr<Outside> make_replayed_outside(NextAnswer next);

struct ResumingOutsideSetup {
  std::function<Result<std::shared_ptr<Outside>>()> make;  // called when the run resumes
  NextAnswer next;
  std::function<bool()> is_live;
};
std::shared_ptr<Outside> make_resuming_outside(ResumingOutsideSetup setup);

}  // namespace primerl
