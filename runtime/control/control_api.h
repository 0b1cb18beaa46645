/// ControlApi: the HTTP listener of a served run's control API. It joins a listener, the tokens and
/// ControlRequests (control_requests.h).
///
/// It lives as long as the command `serve`, so the address stays when the run starts again. Between
/// two starts requests wait. The listener has an I/O thread, which only reads the tokens; all
/// methods are called on the thread of the RunSession.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "graph/base/clock.h"
#include "runtime/control/control_requests.h"
#include "runtime/control/upload_folders.h"
#include "runtime/outside/http_listener.h"

namespace primerl {

struct ControlApiOptions {
  std::string address = "127.0.0.1:0";      // port 0: any free one
  bool is_behind_proxy = false;             // may be another address: a proxy there adds TLS
  std::string tls_cert = {}, tls_key = {};  // PEM files; both empty: without TLS
};

/// kInvalid: no address, or one that other machines reach without TLS; a file of TLS without the
/// other.
Status validate(const ControlApiOptions& options);

class ControlApi {
 public:
  static constexpr size_t kAccepts = 16;                          // requests taken at once
  static constexpr Duration kTokensEvery = Duration::seconds(1);  // looks at their file
  static constexpr int64_t kBodyBytesMax = kDataFileBytesMax;
  static constexpr int64_t kBytesMax = 4 * kBodyBytesMax;  // of bodies and replies together

  /// Listens at once. If the operator has no token yet, it gets one: new_token(). `warn` gets lines
  /// for a person. kExists: another program uses the port. Errors of the TLS files are those of
  /// TlsFiles::open().
  static Result<std::unique_ptr<ControlApi>> open(const ControlApiOptions& options,
                                                  const std::filesystem::path& run_folder,
                                                  std::function<void(const std::string&)> warn);
  ~ControlApi();
  ControlApi(const ControlApi&) = delete;
  ControlApi& operator=(const ControlApi&) = delete;

  /// "http://127.0.0.1:41873", with TLS "https://...".
  const std::string& url() const { return listener_->url(); }
  /// The operator's token if open() made it, to be shown once; "" on later calls.
  std::string take_new_token() { return std::exchange(new_token_, {}); }

  /// A start of the run begins; `catalog` must stay valid until the next one.
  void use(const Catalog& catalog) { requests_.use(catalog); }
  /// `wake` is called when poll() has something to receive; on the listener's thread.
  void set_wake(std::function<void()> wake) { listener_->set_wake(std::move(wake)); }
  /// Receives requests, and returns the asks for TenantControl. Call it every tick.
  std::vector<CommandInbox::Ask> poll(Time now);
  /// Passes on an answer of TenantControl. False: no request over HTTP asked it.
  bool answer(const std::string& id, const Json& answer, Time now) {
    return requests_.answer(id, answer, now);
  }

 private:
  class Lines;
  ControlApi(const std::filesystem::path& run_folder, std::shared_ptr<TokensFile> known,
             std::shared_ptr<Lines> lines, std::shared_ptr<HttpListener> listener,
             std::function<void(const std::string&)> warn);
  void call(std::string body);
  void receive(const OutsideAnswer& answer, Time now);
  void look_at_tokens(Time now);
  void reply(uint64_t request, const ControlRequests::Reply& reply);
  void note(const AuditEntry& entry);

  const std::filesystem::path run_folder_;
  const std::shared_ptr<TokensFile> known_;
  const std::shared_ptr<Lines> lines_;
  const std::function<void(const std::string&)> warn_;
  std::string new_token_;
  AuditLog audit_;
  bool has_audit_failed_ = false;
  ControlRequests requests_;
  uint64_t next_call_ = 1;
  std::set<uint64_t> accepts_;  // calls that wait for a request
  uint64_t closed_call_ = 0;    // waits for clients that go
  Time next_look_;
  std::shared_ptr<HttpListener> listener_;  // destroyed first: its thread asks known_
};

/// Whether a holder is in the table of the run's tenants (tenants.json), which is read once, now.
std::function<bool(const TokenHolder&)> hosted_holders(const std::filesystem::path& run_folder);

/// The new token of a tenant of that table. If clients train it, the token begins with "tml-" and
/// is their API key. `chosen`: the token; empty: a random one. kInvalid: a chosen one has another
/// prefix, length or character.
Result<std::string> new_tenant_token(const std::filesystem::path& run_folder,
                                     const TokenHolder& holder, std::string chosen = {});

}  // namespace primerl
