/// RequestSpans: the course of each request of a run, as nestable asynchronous events ("b", "e") of
/// a Chrome trace:
///
///   request   [ request ............................................ ]   id: where it was first
///             [ router ][ prefill ........ ][ decode ....... ][answer]       handled
///   rollout   [ turn ............................................... ][ environment ][ turn ...
///
/// Phases follow each other without gaps: an actor's phase begins when the actor before it sent the
/// request. All times of a request are kept within those of its rollout, even if the clocks of
/// machines differ.
///
/// Receives steps in the order of Trace::visit(). Memory: at most kOpenRequestsMax unanswered
/// requests and kOpenRolloutsMax rollouts without a known end. Beyond that the oldest are closed as
/// if the record ended there. Not thread-safe; the trace must stay valid while it exists.
#pragma once

#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/query/request_way.h"

namespace primerl {

inline constexpr size_t kOpenRequestsMax = 65536;
inline constexpr size_t kOpenRolloutsMax = 65536;

class RequestSpans {
 public:
  struct Options {
    Time from, to;  // time range of the steps that it receives
    size_t requests_max = kOpenRequestsMax;
    size_t rollouts_max = kOpenRolloutsMax;
  };
  /// `add` receives one event, JSON without a comma.
  RequestSpans(const Trace& trace, const Options& options,
               std::function<void(const std::string&)> add);

  void see(const TraceStep& step);
  /// Closes all open requests and rollouts; call it once.
  void finish();

 private:
  /// A step of an actor group. A request is named by the step that first handled it.
  using StepKey = std::pair<GroupId, uint64_t>;
  using Named = std::pair<uint32_t, int64_t>;  // a tenant, and a request or session of it
  struct Open {
    std::vector<TraceStep> way;
    RequestFacts facts;
    uint64_t order = 0;
    std::optional<Time> asked_again;  // time at which the same rollout sent the request again,
                                      // because no answer came
  };
  using OpenRequests = std::map<StepKey, Open>;
  struct Rollout {
    Named name;
    std::string tenant;  // "alice", of a later use of the name "alice~2"
    uint32_t process = 0, instance = 0;
    Time ended;                // end of its last span so far
    int64_t num_turns = 0;     // number of finished turns
    bool is_whole = false;     // its first turn is known, so turns can be numbered
    StepKey went_on;           // the last step of the `rollout` actor that continued it
    std::optional<Time> acts;  // the time since which its environment has an action
  };
  /// The track of an event.
  struct Track {
    std::string_view category;
    std::string id;
    uint32_t process = 0, instance = 0;
  };
  /// How a request ended.
  struct Ending {
    const TraceStep* completion = nullptr;  // null: unknown, because the record has no completion
    Time at;
    std::string reason;
    RequestEnd end = {};
  };

  void see_on_its_way(const TraceStep& step);
  void see_answer(const TraceStep& completion);
  void see_action(const TraceStep& action);
  void see_observation(const TraceStep& observation);
  bool is_before(const TraceStep& a, const TraceStep& b) const;
  Open* open_for(const TraceStep& step, const TraceStep& entry);
  void make_room();
  void learn(Open& open, const RequestFacts& facts);
  void learn_number(const TraceStep& entry, int64_t request);
  std::optional<int64_t> number_of(const TraceStep& entry) const;
  bool is_of(const std::vector<TraceStep>& way, const std::optional<int64_t>& request) const;
  std::vector<TraceStep> answered_path(const TraceStep& completion, const RequestFacts& facts);
  std::optional<TraceStep> entry_of_number(const TraceStep& completion, int64_t request) const;
  void answer(const TraceStep& completion, const std::vector<TraceStep>& way,
              const RequestFacts& facts, const RequestEnd& end);
  void close(OpenRequests::iterator found);
  void write(const Open& open, const Ending& ending);
  std::string gap_after(const TraceStep& last, const TraceStep* completion) const;
  void write_phases(const Track& track, const Open& open, const Ending& ending, Time begin,
                    Time end);
  void write_turn(const Open& open, const Ending& ending, Time begin, Time end);
  Track track_of(const Rollout& rollout) const;
  Rollout& rollout_of(const Named& name, const TraceStep& entry, Time begin);
  Rollout* rollout_after(const StepRef& step);
  void go_on(Rollout& rollout, StepKey step);
  void write_environment(Rollout& rollout, Time begin, Time end, const Json& facts);
  void end_rollout(std::list<Rollout>::iterator rollout);
  void span(const Track& track, std::string_view name, Time begin, Time end, const Json& facts);
  void edge(const char* phase, const Track& track, std::string_view name, Time at,
            const Json* facts);
  std::string unanswered() const;

  const Trace& trace_;
  const TraceCatalog& catalog_;
  const Options options_;
  const std::function<void(const std::string&)> add_;
  const RequestPaths ways_;

  OpenRequests open_;
  std::map<uint64_t, StepKey> open_order_;  // by the order in which they were first seen
  std::map<Named, StepKey> by_request_;     // open requests with known numbers
  std::map<Named, StepKey> by_session_;
  uint64_t num_opened_ = 0;
  /// Requests whose answer came before their handling in the order of times. That happens when the
  /// two times are equal, or when they come from clocks of different machines.
  std::set<StepKey> answered_early_;
  std::set<StepKey> answered_old_;  // handled before the range
  /// Requests are numbered as they are sent: number = sequence + offset, on each link.
  struct Numbers {
    uint32_t incarnation = 0;
    uint64_t offset = 0;
    bool is_certain = true;
  };
  std::map<LinkId, Numbers> numbers_;
  std::vector<TraceStep> unmatched_;  // answers whose request may become known later
  Time last_;

  std::list<Rollout> rollouts_;  // the longest idle rollout first
  std::map<Named, std::list<Rollout>::iterator> by_name_;
  std::map<StepKey, std::list<Rollout>::iterator> by_step_;
};

}  // namespace primerl
