/// The longest consistent prefix of a record: how far a resumed run follows it. One rule for every
/// way in which a run can end, and for every part of its record that can be missing.
///
/// Each actor group follows its steps in order, up to the first that it cannot repeat: one that is
/// missing or not whole, one that was told to drain, one that failed or gave up and so ended the
/// run, one whose failed request led to that, one that was told of the death of a process that is
/// not restarted alone, and one whose message was sent in a step that its sender does not follow.
/// The last rule is applied until nothing changes. After the death of processes nothing is missing,
/// and the prefix is the whole record.
///
/// So an error of the environment (a full disk, a version of weights that could not be fetched) is
/// not followed as a fact when it ended the run: the step that asked is taken again and asks again.
/// An error that the run survived is followed.
///
/// A process of engines that died in the record and came back, or whose record is not complete, is
/// *absent*: it follows no record and starts fresh when the others resume, as if it had died at
/// that moment. Its unfinished requests are sent again, as after any death of an engine.
///
/// A cut (run_cuts.h) may be newer than what is left of another process's record: it counts
/// messages that this process will not send, or lacks some that this one will not have handled.
/// `newer_cuts` names such processes; an older cut of them must be taken.
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
  std::shared_ptr<const Trace> trace;  // the record up to there; is_closed() is that of the whole
  std::vector<bool> is_absent;         // by GroupId
  std::vector<AbsentProcess> absent;
  std::vector<ProcessId> newer_cuts;
  std::vector<uint64_t> first_steps;  // by GroupId: recorded at all
  Time ended;                         // of the whole record
  uint32_t incarnation = 1;           // of the messages between processes that follow
  uint64_t num_dropped = 0;           // steps
  std::string dropped;                // for a person: what is not followed, and why; empty: nothing
};

/// What a plan can follow of a record, complete from step 1, or from `cuts`, on,
/// of the same nodes, edges and schemas, and no excerpt. The error has the reason.
Result<RecordPrefix> prefix_to_follow(const Plan& plan, std::shared_ptr<const Trace> trace,
                                      const RunCuts& cuts = {});
/// The same of any record that fits the plan (check_fits), also one that nobody can follow.
RecordPrefix longest_prefix(const Plan& plan, std::shared_ptr<const Trace> trace,
                            const RunCuts& cuts = {});
/// By GroupId: whose process died in the record and came back, or has a part of its record missing,
/// so that it is not played: what it sent is taken from the records of the others.
std::vector<bool> absent_groups(const Plan& plan, const Trace& trace, const RunCuts& cuts = {});

}  // namespace primerl
