/// The pages of a running graph on this machine's loopback, and how others find them.
///
///   /metrics   what Prometheus scrapes
///   /status    one JSON value (schema primerl.status/1), what `ps` shows
///   /healthz   "ok"
///
/// Owned by the control plane, as long as the run.
#pragma once

#include <memory>

#include "graph/base/json.h"
#include "runtime/monitor/http.h"
#include "runtime/monitor/status_store.h"

namespace primerl {

/// The port of the HTTP server of a run.
struct WatchPort {
  bool is_off = false;
  uint16_t port = 0;  // 0: any that is free
};
/// "off", "0" or a port. The error says what was valid.
Result<WatchPort> parse_watch_port(const std::string& text);

class RunServer {
 public:
  /// Null when off. kExists: another program has the port.
  static Result<std::unique_ptr<RunServer>> open(const WatchPort& port);
  /// Sets what the pages show from now on; before the first call they answer 503.
  void show(std::shared_ptr<const StatusStore> board);
  uint16_t port() const { return server_->port(); }

 private:
  std::unique_ptr<HttpReply> page(std::string_view path) const;

  mutable std::mutex mutex_;
  std::shared_ptr<const StatusStore> board_;  // guarded by mutex_
  std::unique_ptr<HttpServer> server_;        // destroyed first
};

/// Members of run.json: this process, and where its server listens (null: nowhere).
Json control_facts(const RunServer* server);

}  // namespace primerl
