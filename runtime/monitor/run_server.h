/// The HTTP pages of a running graph on this machine's loopback, and how other programs find them.
///
///   /metrics   scraped by Prometheus
///   /status    one JSON value (schema primerl.status/1), shown by `ps`
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
  uint16_t port = 0;  // 0: any free port
};
/// "off", "0" or a port. The error names the valid values.
Result<WatchPort> parse_watch_port(const std::string& text);

class RunServer {
 public:
  /// Null when off. kExists: another program uses the port.
  static Result<std::unique_ptr<RunServer>> open(const WatchPort& port);
  /// Sets the data of the pages; before the first call they answer 503.
  void show(std::shared_ptr<const StatusStore> board);
  uint16_t port() const { return server_->port(); }

 private:
  std::unique_ptr<HttpReply> page(std::string_view path) const;

  mutable std::mutex mutex_;
  std::shared_ptr<const StatusStore> board_;  // guarded by mutex_
  std::unique_ptr<HttpServer> server_;        // destroyed first
};

/// Members of run.json: this process, and its server's port (null: no server).
Json control_facts(const RunServer* server);

}  // namespace primerl
