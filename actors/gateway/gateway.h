/// Answers HTTP clients with completions of the tenants' policies: a client's request becomes a
/// GenerateRequest, and its Completion the reply (docs/design/gateway.md).
///
///                      [ gateway ]  -> generate, turn
///   completion, policy, closed ~~~>  ~~~> cancel, address
///
/// Clients are outside: a listener is asked for their requests, and the record has them. Requests
/// of a tenant wait here until fewer than its limit are in flight. The tenant with the fewest in
/// flight for its share is next. A request for n completions is n generations. A repeat of a
/// running request, with the same session and body,
/// gets the reply of that one. If all clients of a request have gone, it is cancelled. Every
/// request gets one reply, at the latest after request_timeout. Nothing here trains, except the
/// requests of runs: their `cache_salt` names a rollout, which gets each completed turn.
///
/// Threads: pooled. State: all open requests. Order: requests of a tenant keep their order.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "actors/common/run_salt.h"
#include "actors/common/sent_requests.h"
#include "actors/common/task_mix.h"
#include "actors/common/tenant_chat.h"
#include "actors/common/token_budget.h"
#include "actors/gateway/run_turns.h"
#include "actors/gateway/wire.h"
#include "actors/messages/generation.h"
#include "actors/messages/policy.h"
#include "graph/contract.h"
#include "graph/http_calls.h"
#include "graph/outside.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct GatewayOptions {
  std::string listener;        // the resource that listens; empty = the only one
  std::string model;           // model whose tokenizer is used; empty = the only model
  int64_t max_inflight = 256;  // requests at once, of all tenants
  int64_t max_waiting = 1024;  // of one tenant; more get 429
  int64_t attempts_max = 3;    // engine losses or failures that one request survives
  Duration request_timeout = Duration::seconds(600);  // until the reply
};

class Gateway final : public Actor {
 public:
  using Options = GatewayOptions;
  static Contract contract();
  explicit Gateway(const GatewayOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;
  Status drain() override;
  /// Requests of clients wait while their tenant is paused; those of its runs do not. At kLeave
  /// they fail.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;
  bool idle() const override;
  Status on_peer(const PeerEvent& event) override;

 private:
  /// A client that waits for the reply of a generation.
  struct Client {
    uint64_t request = 0;  // of the listener
    std::string request_id;
    template <class F>
    static void fields(F& f) {
      f("request", &Client::request)("request_id", &Client::request_id);
    }
  };
  /// The form of the reply.
  struct ChatForm {
    bool is_chat = false;
    bool has_logprobs = false;
    bool has_token_ids = false;
    bool has_compact_logprobs = false;
    int64_t created = 0;          // seconds since 1970
    std::string template_kwargs;  // JSON object; empty: the tenant's own
    template <class F>
    static void fields(F& f) {
      f("is_chat", &ChatForm::is_chat)("has_logprobs", &ChatForm::has_logprobs)(
          "has_token_ids", &ChatForm::has_token_ids)(
          "has_compact_logprobs", &ChatForm::has_compact_logprobs)("created", &ChatForm::created)(
          "template_kwargs", &ChatForm::template_kwargs);
    }
  };
  /// The run that a generation is a turn of.
  struct TurnOf {
    MemberName name;
    PolicyVersion version;  // of its group
    template <class F>
    static void fields(F& f) {
      f("name", &TurnOf::name)("version", &TurnOf::version);
    }
  };
  /// One generation, and the clients that wait for it.
  struct Generation {
    TenantSlot tenant;
    GenerateRequest request;  // its number changes when it is sent again
    ChatForm chat;
    std::string join_key;  // of session and body; empty: no repeat joins it
    Time deadline;
    std::vector<Client> clients;
    bool is_sent = false;
    std::optional<TurnOf> run;  // none: an ordinary client's
    /// With n > 1: the first of the n, which has the clients; 0: this is the first, or the only.
    uint64_t first = 0;
    std::vector<uint64_t> others;             // of the first: the other n - 1
    std::map<uint64_t, Completion> finished;  // of the first: by generation, without kept sets
    template <class F>
    static void fields(F& f) {
      using G = Generation;
      f("tenant", &G::tenant)("request", &G::request)("chat", &G::chat)("join_key", &G::join_key)(
          "deadline", &G::deadline)("clients", &G::clients)("is_sent", &G::is_sent)("run", &G::run)(
          "first", &G::first)("others", &G::others)("finished", &G::finished);
    }
  };
  struct TenantState : SentRequests {
    PolicyVersion live;
    std::deque<uint64_t> waiting;  // generations; at most max_waiting, and those sent again
    RunTurns runs;
    TokenBudget budget;  // of clients' requests; those of runs are the rollout node's
    template <class F>
    static void fields(F& f) {
      using T = TenantState;
      f("live", &T::live)("num_inflight", &T::num_inflight)("waiting", &T::waiting)(
          "answered", &T::answered)("to_cancel", &T::to_cancel)("cancelled", &T::cancelled)(
          "runs", &T::runs)("budget", &T::budget);
    }
  };
  enum class AskedKind : uint8_t { kAccept, kClosed, kReply, kAddress };

  // gateway.cc: generations
  Status on_completion(const Completion& completion);
  Status on_policy(const PolicyLive& live);
  Status on_deadline();
  /// Adds it and its others, which differ in their seeds.
  void add(Generation generation, const ClientRequest& client, uint64_t request);
  bool may_send() const;
  void send_waiting();
  TenantSlot next_tenant() const;
  /// The next generation of a tenant that may be sent; the end of `waiting` if there is none.
  std::deque<uint64_t>::const_iterator next_of(TenantSlot slot, const TenantState& tenant) const;
  void begin_tenant(TenantSlot slot);
  void drop_tenant(TenantSlot slot);
  void send(uint64_t number);
  void send_cancels();
  void wait_again(uint64_t number);
  void try_again(uint64_t number, const std::string& reason);
  void complete(uint64_t number, const Completion& completion);
  Result<std::string> body_of(const Generation& generation, uint64_t number,
                              std::span<const Completion> completions);
  /// The answer of one completion of a chat.
  chat::ParsedAnswer answer_of(const Generation& generation, const chat::ChatFormat& format,
                               const Completion& completion) const;
  /// Replies to all clients of a generation, and forgets it.
  void end(uint64_t number, int32_t status, const std::string& body);
  void fail(uint64_t number, const Error& error);
  /// Cancels it, if it was sent, and forgets it; with n > 1 all n, given the first.
  void abandon(uint64_t number);
  /// Cancels it, if it was sent; else it does not wait any more.
  void stop(Generation& generation, uint64_t number);
  void stop_others(uint64_t number);
  void arm_deadline();
  /// The time until the tenant may have tokens again.
  Duration budget_wait(TenantSlot slot, const TenantState& tenant) const;

  // gateway_runs.cc: requests of runs
  Status on_member_closed(const MemberClosed& closed);
  /// Makes the generation a turn of a run. `is_seeded_here`: the client gave no seed.
  Status begin_turn(const RunSalt& run, bool is_seeded_here, Generation& generation);
  void send_turn(Generation& generation, const Completion& completion);
  void end_turn(const Generation& generation);
  /// The tenant as the environment of a run's group sees it.
  const Tenant& tenant_of_run(TenantSlot slot, uint64_t ordinal) const;
  /// The key of the names of a tenant's runs. It is the same in every process of a run.
  uint64_t seal_key(TenantSlot slot) const;
  bool has_rollouts(TenantSlot tenant) const { return !turn_.targets(tenant).empty(); }
  Status ask_address();
  Status on_address(const std::string& answer);

  // gateway_clients.cc: requests of clients
  Status ask(AskedKind kind, std::string body);
  Status keep_calls_open();
  Status receive_answers();
  Status on_request(uint64_t request, const ClientRequest& client);
  void on_closed(const std::vector<uint64_t>& requests);
  Result<std::string> reply_at_once(const ClientRequest& client);
  /// `make` returns the Generation, if the request does not join one.
  template <class Make>
  Status open(const ClientRequest& client, uint64_t request, const Make& make);
  Status generate(const ClientRequest& client, uint64_t request);
  Status chat(const ClientRequest& client, uint64_t request);
  Result<std::string> tokenize(const ClientRequest& client);
  std::string models(const ClientRequest& client) const;
  static std::string version();
  Result<std::string> health() const;
  /// The tenants, of those that the client may use, whose model has this name for clients.
  std::vector<TenantSlot> tenants_served_as(const std::string& model,
                                            const ClientRequest& client) const;
  /// The tenant of that name, or the only one of a model with that name for clients.
  Result<TenantSlot> tenant_of(const std::string& model, const ClientRequest& client) const;
  Result<Generation> generation_of(GenerateCall call, TenantSlot tenant,
                                   const ClientRequest& client);
  void warn_of(const std::vector<std::string>& ignored);
  /// The tenant's chat format with these further chat_template_kwargs.
  Result<const chat::ChatFormat*> format_of(TenantSlot tenant, const std::string& kwargs);
  void reply(uint64_t request, int32_t status, std::string body, std::string request_id);

  SendOptions send_options(TenantSlot tenant) const {
    return for_tenant(tenant).to_origin_of(services().self());
  }

  const GatewayOptions options_;
  // Constant after start.
  Outside* listener_ = nullptr;
  Tokenizer* tokenizer_ = nullptr;
  // Both follow from the tenants and on_tenant(), and are not saved.
  std::map<TenantSlot, TaskMix> mixes_;  // of tenants with several environments
  std::set<TenantSlot> paused_;
  // Follows from the tenants; not saved.
  std::map<std::pair<TenantSlot, std::string>, chat::ChatFormat> formats_;
  // Touched only by handlers.
  std::map<TenantSlot, TenantState> tenants_;
  std::map<uint64_t, Generation> generations_;
  std::map<std::pair<TenantSlot, uint64_t>, uint64_t> requests_;  // generation by request
  std::map<uint64_t, uint64_t> clients_;                          // generation by client
  std::map<std::string, uint64_t> joinable_;                      // generation by join_key
  std::set<std::pair<Time, uint64_t>> deadlines_;
  std::optional<Time> armed_;
  std::map<uint64_t, AskedKind> asked_;  // by call
  int64_t num_accepts_ = 0;              // of asked_
  int64_t num_closed_ = 0;
  bool is_address_asked_ = false;
  std::string base_url_;  // of the listener, as it was sent
  uint64_t next_generation_ = 1;
  uint64_t next_request_ = 0;
  std::set<std::string> warned_;
  std::set<InstanceId> routers_;
  bool is_draining_ = false;
  uint32_t num_asked_ = 0;  // by this handler
  Out<GenerateRequest> generate_;
  Out<Cancel> cancel_;
  Out<MemberTurn> turn_;
  Out<GatewayAddress> address_;
};

}  // namespace primerl
