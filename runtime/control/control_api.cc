#include "runtime/control/control_api.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "graph/base/real_clock.h"
#include "runtime/control/tenant_control.h"
#include "runtime/outside/listen_address.h"

namespace primerl {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kEventStream = "text/event-stream";
constexpr int kRoundsMax = 16;  // of receive_answers() in one poll()

}  // namespace

/// Lines of the listener for a person, at most kLinesMax between two calls of remove(). Any thread.
class ControlApi::Lines {
 public:
  void add(std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() < kLinesMax) lines_.emplace_back(line);
  }
  std::vector<std::string> remove() {
    const std::lock_guard lock(mutex_);
    return std::exchange(lines_, {});
  }

 private:
  static constexpr size_t kLinesMax = 16;
  std::mutex mutex_;
  std::vector<std::string> lines_;  // guarded by mutex_
};

std::function<bool(const TokenHolder&)> hosted_holders(const fs::path& run_folder) {
  const auto names = hosted_names(run_folder);
  return [all = std::set<std::string>(names.begin(), names.end())](const TokenHolder& holder) {
    return all.contains(holder.name());
  };
}

Result<std::string> new_tenant_token(const fs::path& run_folder, const TokenHolder& holder,
                                     std::string chosen) {
  const auto clients = hosted_clients(run_folder);
  const bool has_clients = std::ranges::find(clients, holder.name()) != clients.end();
  const auto prefix = has_clients ? kClientKeyPrefix : kControlTokenPrefix;
  if (!chosen.empty()) RETURN_IF_ERROR(check_chosen_token(chosen, prefix));
  if (chosen.empty()) chosen = new_control_token(prefix);
  return rotate_control_token(run_folder, holder, hosted_holders(run_folder), std::move(chosen));
}

Status validate(const ControlApiOptions& options) {
  ASSIGN_OR_RETURN(const ListenAddress address, parse_listen_address(options.address));
  if (options.tls_cert.empty() != options.tls_key.empty())
    return error(Code::kInvalid,
                 "--tls-cert and --tls-key belong together: one of them is missing");
  if (address.is_loopback || options.is_behind_proxy || !options.tls_cert.empty()) return ok();
  return error(Code::kInvalid, "the control API on {} would send tokens without TLS",
               options.address)
      .note(
          "add --tls-cert and --tls-key; or listen on 127.0.0.1; or add --behind-proxy if only a "
          "proxy that adds TLS reaches the address");
}

Result<std::unique_ptr<ControlApi>> ControlApi::open(const ControlApiOptions& options,
                                                     const fs::path& run_folder,
                                                     std::function<void(const std::string&)> warn) {
  RETURN_IF_ERROR(validate(options));
  remove_old_uploads(run_folder);
  ASSIGN_OR_RETURN(const ControlTokens tokens, read_control_tokens(run_folder));
  std::string new_token;
  if (!tokens.has(TokenHolder())) {
    ASSIGN_OR_RETURN(new_token,
                     rotate_control_token(run_folder, TokenHolder(), hosted_holders(run_folder)));
  }
  auto known = std::make_shared<TokensFile>(run_folder);
  RETURN_IF_ERROR(known->look());
  HttpListenerOptions listens;
  listens.listen = options.address;
  listens.tls_cert = options.tls_cert;
  listens.tls_key = options.tls_key;
  listens.connections_max = 256;
  listens.requests_max = 64;
  listens.body_bytes_max = kBodyBytesMax;
  listens.bytes_max = kBytesMax;
  HttpDoor door;
  door.holder_of = [known](std::string_view token) -> std::optional<std::string> {
    const auto holder = known->find(token);
    if (!holder) return std::nullopt;
    return holder->name();
  };
  door.error_body = [](int32_t status, std::string_view message) {
    return listener_fault(status, message).json().dump();
  };
  auto lines = std::make_shared<Lines>();
  door.log = [lines](std::string_view line) { lines->add(line); };
  ASSIGN_OR_RETURN(auto listener, make_http_listener(listens, door));
  std::unique_ptr<ControlApi> made(new ControlApi(run_folder, std::move(known), std::move(lines),
                                                  std::move(listener), std::move(warn)));
  made->new_token_ = std::move(new_token);
  return made;
}

ControlApi::ControlApi(const fs::path& run_folder, std::shared_ptr<TokensFile> known,
                       std::shared_ptr<Lines> lines, std::shared_ptr<HttpListener> listener,
                       std::function<void(const std::string&)> warn)
    : run_folder_(run_folder),
      known_(std::move(known)),
      lines_(std::move(lines)),
      warn_(std::move(warn)),
      audit_(run_folder / "logs"),
      requests_(
          {.run_folder = run_folder,
           .reply = [this](uint64_t request,
                           const ControlRequests::Reply& made) { reply(request, made); },
           .stream =
               [this](uint64_t request, const std::string& text, bool is_last) {
                 ClientReply part;
                 part.request = request;
                 part.content_type = kEventStream;
                 part.body = text;
                 part.has_more = !is_last;
                 call(reply_call(part));
               },
           .new_token =
               [this](const TokenHolder& holder) { return new_tenant_token(run_folder_, holder); },
           .audit = [this](const AuditEntry& entry) { note(entry); },
           .wall_time = [] { return iso_time(wall_seconds()); }}),
      listener_(std::move(listener)) {}

ControlApi::~ControlApi() { listener_->stop(); }

/// A call that the listener refuses is a mistake of this file, or it has too many calls.
void ControlApi::call(std::string body) {
  OutsideCall made;
  made.id = next_call_++;
  made.body = std::move(body);
  if (const Status asked = listener_->ask(std::move(made)); !asked.ok())
    warn_("the control API: " + asked.error().text());
}

std::vector<CommandInbox::Ask> ControlApi::poll(Time now) {
  look_at_tokens(now);
  for (int i = 0; i < kRoundsMax; ++i) {
    while (accepts_.size() < kAccepts) {
      accepts_.insert(next_call_);
      call(accept_call());
    }
    if (closed_call_ == 0) {
      closed_call_ = next_call_;
      call(closed_call());
    }
    if (!listener_->has_work()) break;
    for (const OutsideAnswer& answer : listener_->receive_answers()) receive(answer, now);
  }
  requests_.tick(now);
  return requests_.take_asks();
}

void ControlApi::receive(const OutsideAnswer& answer, Time now) {
  if (accepts_.erase(answer.id) > 0) {
    const auto request = read_client_request(answer.body);
    CHECK(request.ok(), "a listener gave what is no request");
    return requests_.handle(answer.id, *request, read_holder(request->tenant), now);
  }
  if (answer.id != closed_call_) return;  // whether a reply was sent
  closed_call_ = 0;
  const auto closed = read_closed(answer.body);
  CHECK(closed.ok(), "a listener gave what is no list of requests");
  for (const uint64_t request : *closed) requests_.closed(request);
}

void ControlApi::reply(uint64_t request, const ControlRequests::Reply& made) {
  ClientReply sent;
  sent.request = request;
  sent.status = made.status;
  sent.body = made.body.dump() + "\n";
  sent.retry_after = made.retry_after;
  call(reply_call(sent));
}

void ControlApi::look_at_tokens(Time now) {
  if (now < next_look_) return;
  next_look_ = now + kTokensEvery;
  for (const std::string& line : lines_->remove()) warn_("the control API: " + line);
  if (const Status read = known_->look(); !read.ok())
    warn_("the tokens of the control API that were read before stay: " + read.error().text());
}

/// A full disk does not end the run; the first line that is lost is reported.
void ControlApi::note(const AuditEntry& entry) {
  const Status added = audit_.add(entry);
  if (!added.ok() && !std::exchange(has_audit_failed_, true))
    warn_("logs/audit.jsonl lacks requests: " + added.error().text());
}

}  // namespace primerl
