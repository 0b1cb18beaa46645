/// ServerLink: the connection to one verifiers server and the runs in flight on it.
///
/// Opens by finding out the dialect, then sends each run over one socket and asks for the server's
/// health over another. Every run gets exactly one answer: kDone, kFailed (the server says so, its
/// answer is not valid, or the deadline has passed; then it is cancelled at the server), or kLost
/// (the connection or the server ended). Frames of runs that have their answer are counted and
/// dropped.
///
/// No thread and no clock: lives on the I/O thread, times are of the steady clock.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "graph/base/clock.h"
#include "graph/outside.h"
#include "runtime/outside/verifiers/dealer_sockets.h"
#include "runtime/outside/verifiers/episode_assembly.h"
#include "runtime/outside/verifiers/msgpack_json.h"
#include "runtime/outside/verifiers/probe.h"

namespace primerl {

struct ServerLinkOptions {
  std::string name;                          // for messages: "environment 'wiki', server 0"
  std::optional<VerifiersDialect> protocol;  // none: finds out
  PolicyClient policy;
  int64_t concurrency = 256;  // runs at once
  int64_t answer_bytes_max = int64_t{256} << 20;
  MsgpackLimits answer_limits;  // of all messages of an answer together
  Duration run_timeout = Duration::seconds(3600);
  Duration start_timeout = Duration::seconds(600);
  Duration health_timeout = Duration::seconds(30);  // silence after which it counts as dead
  Duration health_every = Duration::seconds(5);
  Duration probe_timeout = Duration::seconds(2);
};

struct ServerLinkCounts {
  uint64_t late = 0;       // frames of runs that had their answer
  uint64_t malformed = 0;  // messages that belong to no run and have a wrong form
  uint64_t abandoned = 0;  // runs that ended here and that the dialect cannot cancel
};

class ServerLink {
 public:
  using OnAnswer = std::function<void(OutsideAnswer answer)>;
  using Log = std::function<void(std::string_view line)>;

  ServerLink(ServerLinkOptions options, DealerSockets& sockets, ServerProbe::MakeId make_id,
             OnAnswer on_answer, Log log);
  ~ServerLink();
  ServerLink(const ServerLink&) = delete;
  ServerLink& operator=(const ServerLink&) = delete;

  /// Must be closed.
  void open(const std::string& address, Time now);
  /// Its runs are lost for this reason.
  void close(const std::string& reason);
  bool is_open() const { return !address_.empty(); }
  bool has_space() const { return is_ready_ && std::cmp_less(runs_.size(), options_.concurrency); }
  /// Must have space. The call is a `run` with a session.
  void run(OutsideCall call, Time now);
  /// False: no run of this session. Else it is cancelled and answered kFailed.
  bool cancel(uint64_t session);
  /// Reads what has arrived, and applies deadlines.
  void turn(Time now);
  std::optional<Time> next_deadline() const;

  /// Why it cannot be used any more: kUnavailable (silent, or the connection broke), or the error
  /// of the probe. The owner closes it then.
  const std::optional<Error>& fault() const { return fault_; }
  /// None while it finds out.
  const std::optional<FoundServer>& found() const { return found_; }
  size_t num_runs() const { return runs_.size(); }
  const std::string& address() const { return address_; }
  const std::string& name() const { return options_.name; }
  const ServerLinkCounts& counts() const { return counts_; }

 private:
  struct Run {
    OutsideCall call;
    int64_t members = 1;
    Time deadline;
    Duration limit;
    int64_t num_bytes = 0;  // of its answer
    MsgpackLimits limits;   // what is left for its answer
    EpisodeAssembly assembly;
  };
  using Runs = std::map<std::string, Run, std::less<>>;

  void open_socket(std::optional<uint64_t>& socket);
  void close_socket(std::optional<uint64_t>& socket);
  void turn_probe(Time now);
  void turn_runs(Time now);
  void turn_health(Time now);
  void note_heard(Time now);
  void fail(Error why);
  void on_run_frames(const Frames& frames);
  Result<std::optional<Json>> read_run_frames(const Frames& frames, Run& run);
  void on_health_frames(const Frames& frames);
  /// The run leaves the table with this answer.
  void answer(Runs::iterator run, OutsideEnd end, std::string body);
  void send_cancel(const std::string& id);

  const ServerLinkOptions options_;
  DealerSockets& sockets_;
  const ServerProbe::MakeId make_id_;
  const OnAnswer on_answer_;
  const Log log_;
  std::string address_;
  std::optional<ServerProbe> probe_;
  std::optional<FoundServer> found_;
  std::optional<uint64_t> probe_socket_, run_socket_, health_socket_;
  bool is_ready_ = false;  // the run socket is connected
  std::optional<Error> fault_;
  Runs runs_;                                      // by their request id
  std::map<uint64_t, std::string> id_of_session_;  // the request id
  std::set<std::pair<Time, std::string>> deadlines_;
  std::set<std::string, std::less<>> cancels_;  // ids of cancel requests without an answer
  Time last_heard_, next_health_;
  bool is_asked_ = false;  // for its health, since last_heard_
  ServerLinkCounts counts_;
};

}  // namespace primerl
