/// ServerProbe: finds out which dialect a server speaks, without harm to any version.
///
/// The broker of a W1 pool ends when it gets a request of W0, so W1 is asked first, and W0 only
/// after three silences on live connections. Each request goes over a socket of its own: a socket
/// whose connection breaks could otherwise deliver two requests to the next server. A request
/// counts only after its connection was completed.
///
/// A state machine without sockets and clock. Drive it so: while result() is empty, open a socket
/// when wants_socket(), report its connection, send request() once when it is given, and report
/// frames, breaks and the time. Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "graph/base/clock.h"
#include "runtime/outside/verifiers/dialect.h"

namespace primerl {

struct FoundServer {
  VerifiersDialect dialect = VerifiersDialect::kW0;
  std::optional<int64_t> num_tasks;  // W1a, W1b: tasks that are addressed by index
};

struct ProbeOptions {
  std::string address;                              // for errors
  std::optional<VerifiersDialect> pinned;           // none: finds out
  Duration answer_timeout = Duration::seconds(2);   // of one health request
  Duration start_timeout = Duration::seconds(600);  // of all; a server loads its environment
};

class ServerProbe {
 public:
  using MakeId = std::function<std::string()>;

  ServerProbe(ProbeOptions options, MakeId make_id, Time now);

  /// The earlier socket, if there is one, must be closed and another opened.
  bool wants_socket() const { return !result_ && !has_socket_; }
  void on_opened() { has_socket_ = true; }
  void on_connected(Time now);
  /// The connection broke: the server may be another one now, so everything begins again.
  void on_disconnected();
  void on_frames(const Frames& frames, Time now);
  void on_time(Time now);
  /// The frames to send now; none: nothing, or they were given before.
  std::optional<Frames> request();
  std::optional<Time> next_deadline() const;
  /// kDeadline: no answer within start_timeout. kInvalid: not a server of a known dialect.
  const std::optional<Result<FoundServer>>& result() const { return result_; }

 private:
  enum class Stage { kHealth, kInfo, kRun, kLegacy };

  Frames make_request();
  void go_to(Stage stage);
  void finish(Error why) { result_ = std::move(why); }
  void finish(VerifiersDialect dialect);
  void on_silence();
  void on_health(const Frames& frames);
  void on_legacy(const Frames& frames);
  void on_info(const Json& reply);
  void on_run(const Json& reply);
  std::optional<Json> read_reply(const Frames& frames);

  const ProbeOptions options_;
  const MakeId make_id_;
  const Time started_;
  Stage stage_;
  int num_silences_ = 0;  // health requests in a row without an answer on a live connection
  bool has_socket_ = false;
  bool has_answered_ = false;  // that it is not ready
  std::optional<Time> asked_;  // when the connection of this request was completed
  std::optional<Frames> request_;
  std::string id_;
  std::string last_fault_;
  FoundServer found_;
  std::optional<Result<FoundServer>> result_;
};

}  // namespace primerl
