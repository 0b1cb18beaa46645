/// ControlRequests: the requests to the control API of a served run. It checks who may do what,
/// gives the same asks to TenantControl as `primerl-graph tenant` does, and makes the replies.
///
///   request -> rate, route, rights, upload rules -> ask "http/N" -> answer -> reply, audit line
///   events  -> "ls" is asked every 500 ms while a client looks -> parts of a reply, one each time;
///              with "after" one reply with all newer ones, at most after 25 s
///
/// A stream of events is in the form of Server-Sent Events. It ends when the tenant has left, and
/// after kStreamMax. It has a comment every kHeartbeatEvery.
///
/// A state machine: no thread, no clock, no socket. ControlApi passes it requests with their time.
/// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/catalog.h"
#include "graph/http_calls.h"
#include "runtime/control/audit_log.h"
#include "runtime/control/control_routes.h"
#include "runtime/control/request_rate.h"
#include "runtime/outside/control_tokens.h"
#include "runtime/store/command_box.h"

namespace primerl {

class ControlRequests {
 public:
  static constexpr size_t kPollsMax = 32;         // requests for events at once, streams too
  static constexpr size_t kPollsOfHolderMax = 4;  // of one token
  static constexpr size_t kEventsMax = 256;       // kept of one tenant; older ones are dropped
  static constexpr size_t kPartBytesMax = size_t{32} << 10;  // of a stream, at one look
  static constexpr Duration kPollMax = Duration::seconds(25);
  static constexpr Duration kLookEvery = Duration::milliseconds(500);
  static constexpr Duration kStreamMax = Duration::seconds(3600);
  static constexpr Duration kHeartbeatEvery = Duration::seconds(15);
  static constexpr Duration kWatchFor = Duration::seconds(60);  // after the last look at events

  struct Reply {
    int32_t status = 200;
    Json body;
    int32_t retry_after = kRetryAfterSeconds;
  };
  struct Setup {
    std::filesystem::path run_folder;
    std::function<void(uint64_t request, const Reply& reply)> reply;
    /// A part of a reply of events. `is_last`: no other part follows.
    std::function<void(uint64_t request, const std::string& text, bool is_last)> stream;
    /// A new token for a tenant that has joined.
    std::function<Result<std::string>(const TokenHolder& holder)> new_token;
    std::function<void(const AuditEntry& entry)> audit;
    std::function<std::string()> wall_time;  // iso_time() now
  };
  explicit ControlRequests(Setup setup) : setup_(std::move(setup)) {}

  /// The catalog of the graph that runs; it must stay valid until the next call.
  void use(const Catalog& catalog) { catalog_ = &catalog; }

  /// A request of a client with a known token.
  void handle(uint64_t request, const ClientRequest& from, const TokenHolder& who, Time now);
  /// The client of the request has gone.
  void closed(uint64_t request);
  /// Ends requests for events that waited long enough, and looks for new events.
  void tick(Time now);
  /// Asks for TenantControl since the last call, in order.
  std::vector<CommandInbox::Ask> take_asks() { return std::exchange(asks_, {}); }
  /// An answer of TenantControl. False: no request here asked it.
  bool answer(const std::string& id, const Json& answer, Time now);

 private:
  struct Open {
    uint64_t request = 0;
    TokenHolder who;
    const ControlRoute* route = nullptr;
    std::string path;
    std::filesystem::path upload{};  // of an add
    std::string with_data_of{};      // of an add: the tenant whose data files were moved for it
  };
  struct Poll {
    uint64_t request = 0;
    TokenHolder who;
    std::string name;
    uint64_t after = 0;
    Time until;
    bool is_stream = false;
    bool has_begun = false;  // of a stream: a part was sent
    uint32_t tenancy = 0;    // of a stream that has begun
    Time heard;              // of a stream: when it was asked for, or its last part was sent
  };
  /// The events of a tenant while requests for events come.
  struct Watched {
    uint32_t tenancy = 0;
    uint64_t num_events = 0;
    std::deque<Json> events{};
    std::string newest{};  // the newest event as text, without its number and time
  };

  void ask(Open open, Json content);
  void add(Open open, const ClientRequest& from);
  void store(const Open& open, const RoutedRequest& routed, const std::string& bytes);
  void discard(const Open& open, const std::string& tenant);
  void poll(const Open& open, const RoutedRequest& routed, Time now);
  void see(const Json& answer, Time now);
  void see_tenant(const Json& tenant);
  bool reply_events(const Poll& poll, bool is_late);
  bool stream_events(Poll& stream, Time now);
  bool keep_alive(Poll& stream, Time now);
  void end_polls(const std::function<bool(Poll&)>& has_ended);
  Json answered(const Open& open, const Json& answer) const;
  void refuse(const Open& open, const ControlFault& fault);
  void note(const Open& open, int32_t status, const std::string& result);

  const Setup setup_;
  const Catalog* catalog_ = nullptr;
  RequestRate rate_;
  uint64_t next_ask_ = 1;
  std::vector<CommandInbox::Ask> asks_;
  std::map<std::string, Open> open_;  // by the id of the ask
  std::vector<Poll> polls_;
  std::map<std::string, Watched> watched_;  // by name
  Time watch_until_, next_look_;
};

}  // namespace primerl
