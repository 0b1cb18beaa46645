/// The longest consistent prefix of a record: how far a resumed run follows it. One rule covers
/// every way in which a run can end, and every missing part of its record.
///
/// Each actor group follows its steps in order, up to the first step that it cannot repeat. It
/// cannot repeat a step
/// - that is missing or damaged,
/// - that was asked to drain,
/// - that failed or gave up and so ended the run, or whose failed request led to that,
/// - that reports the death of a process which is not restarted alone,
/// - whose message came from a step that its sender does not follow.
/// The last rule is applied until nothing changes. After the death of processes nothing is missing,
/// and the prefix is the whole record.
///
/// So an error of the environment (a full disk, weights that could not be fetched) is not repeated
/// if it ended the run: the step runs again and asks again. An error that the run survived is
/// repeated.
///
/// A process of engines is *absent* if it died in the record and was restarted, or if its record is
/// not complete. It follows no record and starts fresh when the others resume, as if it had died at
/// that moment. Its unfinished requests are sent again, as after any death of an engine.
///
/// A cut (run_cuts.h) may be newer than the remaining record of another process. Then it counts
/// messages that this process will not send, or it lacks messages that this process has not yet
/// handled. `newer_cuts` names the processes with such cuts; an older cut must be used for them.
///
/// Values, any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/replay/run_cuts.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// A process that does not follow, and its newest incarnation in the record.
struct AbsentProcess {
  ProcessId process;
  uint32_t incarnation = 0;
};

struct RecordPrefix {
  std::shared_ptr<const Trace> trace;  // the record up to the prefix's end; is_closed() is that of
                                       // the whole
  std::vector<bool> is_absent;         // by GroupId
  std::vector<AbsentProcess> absent;
  std::vector<ProcessId> newer_cuts;
  std::vector<uint64_t> first_steps;  // by GroupId: the first step in the record
  Time ended;                         // last time of the whole record
  uint32_t incarnation = 1;           // of messages between processes that follow
  uint64_t num_dropped = 0;           // number of steps
  std::string dropped;                // for a person: the steps that are not followed, and why;
                                      // empty: none
};

/// The part of a record that a plan can follow. The record must be complete from step 1 or from
/// `cuts`, must have the same nodes, edges and schemas, and must not be an excerpt. Otherwise the
/// error has the reason.
Result<RecordPrefix> prefix_to_follow(const Plan& plan, std::shared_ptr<const Trace> trace,
                                      const RunCuts& cuts = {});
/// The prefix of any record that fits the plan (check_fits), even if it cannot be followed.
RecordPrefix longest_prefix(const Plan& plan, std::shared_ptr<const Trace> trace,
                            const RunCuts& cuts = {});
/// By GroupId: groups that are not replayed, because their process died in the record and was
/// restarted, or because a part of its record is missing. Their messages come from the records of
/// the other groups.
std::vector<bool> absent_groups(const Plan& plan, const Trace& trace, const RunCuts& cuts = {});

}  // namespace primerl
