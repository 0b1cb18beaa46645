/// Serves clients of Tinker's SDK: they train tenants and sample from them over HTTP
/// (docs/design/tinker.md).
///
///                                  [ tinker ]  -> generate, pass, update, weights
///   completion, policy          ~~~>            ~~~> cancel
///   passed, updated, weights_done ~~~>
///
/// Clients are outside: a listener is asked for their requests, and the record has them. A request
/// of a model waits for the earlier ones of its model, then for the one that its tenant has at the
/// trainer: there is one at a time. A sample becomes one GenerateRequest for each of its sequences.
/// Each of these requests has a future. Its answer stays here until the client has fetched it.
///
/// A tenant serves one model at a time. It is bound when the model is created, after a reset of the
/// adapter, and free again when the model is unloaded or its session ends. Tenants join and leave
/// while others train; a key is for one use of a slot.
///
/// Threads: pooled. State: all open requests. Order: requests of a model run by their number.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/common/client_key.h"
#include "actors/messages/client.h"
#include "actors/messages/generation.h"
#include "actors/messages/policy.h"
#include "actors/tinker/answer_store.h"
#include "actors/tinker/answers.h"
#include "actors/tinker/listings.h"
#include "actors/tinker/request_order.h"
#include "actors/tinker/requests.h"
#include "actors/tinker/tenant_limit.h"
#include "actors/tinker/tinker_state.h"
#include "graph/contract.h"
#include "graph/http_calls.h"
#include "graph/outside.h"
#include "graph/tenant_change.h"
#include "kernels/text/tokenizer.h"

namespace primerl {

struct TinkerOptions {
  std::string listener;         // the resource that listens; empty = the only one
  std::string model;            // model whose tokenizer is used; empty = the only model
  std::string tokenizer;        // what clients give to AutoTokenizer; empty = the model's folder
  int64_t max_inflight = 256;   // sequences at once, of all tenants
  int64_t max_waiting = 4096;   // sequences of one tenant that wait; more get 429
  int64_t attempts_max = 3;     // engine losses or failures that one sequence survives
  int64_t snapshots_max = 8;    // weights for samplers that one tenant keeps
  int64_t sessions_max = 64;    // open ones of one tenant
  int64_t samplers_max = 1024;  // of one tenant; beyond it the one that is unused longest ends
  Duration sample_timeout = Duration::seconds(600);  // from a request for samples to its answer
  Duration train_timeout = Duration::seconds(1800);  // of one request at the trainer
  Duration live_timeout = Duration::seconds(300);    // until engines have published weights
  Duration session_timeout = Duration::seconds(60);  // a session without a request ends
};

class Tinker final : public Actor {
 public:
  using Options = TinkerOptions;
  static Contract contract();
  explicit Tinker(const TinkerOptions& options) : options_(options) {}

  Status start(Resources& resources) override;
  Result<bool> work() override;
  Status drain() override;
  bool idle() const override;
  /// While a tenant is paused, its requests wait. At kLeave they fail, and its names are gone.
  Status on_tenant(TenantSlot slot, TenantChange::Kind kind) override;
  Status on_peer(const PeerEvent& event) override;

 private:
  static constexpr int64_t kSentPerWorkCall = 64;
  static constexpr int64_t kCancelsPerWorkCall = 16;

  using Client = ClientRequest;

  // tinker.cc: the listener, futures, deadlines
  Status ask(tinker::AskedKind kind, std::string body, uint64_t future = 0);
  Status keep_calls_open();
  Status receive_answers();
  void on_request(uint64_t call, const Client& client);
  /// The JSON body of the reply to a request that is answered at once.
  Result<std::string> answer(const tinker::RouteMatch& match, const Client& client);
  /// Replies now or, while the request has no answer, later.
  Status retrieve(uint64_t call, const Client& client);
  Result<std::string> cancel_future(const Client& client);
  void reply(uint64_t call, int32_t status, std::string body, std::string request_id);
  void refuse_call(uint64_t call, const Error& error, const std::string& request_id);
  void reply_answer(uint64_t call, const tinker::StoredAnswer& answer, uint64_t future,
                    std::string request_id);
  /// Gives a future its answer, and the clients that wait for it too.
  void complete(uint64_t future, std::string_view body, bool is_protobuf = false);
  void fail(uint64_t future, const Error& error);
  /// kExhausted: the tenant has as many open futures as it may have.
  Status check_futures(TenantSlot tenant) const;
  /// Tenants that clients train: they share the limits of this actor.
  size_t num_clients() const;
  void on_closed(const std::vector<uint64_t>& calls);
  Status on_deadline();
  tinker::QueueState queue_state(uint64_t future) const;
  /// Has the deadlines looked at then, or earlier.
  void wake_at(Time time);
  Time next_deadline() const;

  // tinker_sessions.cc: sessions, models, samplers and their names
  /// The tenant of a new session.
  Result<TenantSlot> tenant_of(const Client& client, const std::string& wanted) const;
  bool may_use(const Client& client, TenantSlot tenant) const {
    return primerl::may_use(client, services().tenant(tenant));
  }
  /// kNotFound: the tenant of the client's key has left. kUnavailable: it has not started.
  Status check_key(const Client& client) const;
  Result<tinker::Session*> find_session(const std::string& name, const Client& client);
  Result<tinker::Model*> find_model(const std::string& name, const Client& client);
  Result<tinker::Sampler*> find_sampler(const std::string& name, const Client& client);
  void touch(const std::string& session);
  /// The session of an open request; empty: it has none.
  std::string session_of(uint64_t request) const;
  Result<std::string> create_session(const Client& client);
  Result<std::string> heartbeat(const Client& client);
  Result<std::string> finish_session(const std::string& name, const Client& client);
  Result<std::string> create_model(const Client& client);
  Result<std::string> unload_model(const Client& client);
  Result<std::string> get_info(const Client& client);
  Status create_sampler(uint64_t call, const Client& client);
  Result<std::string> sampler_of_path(const tinker::CreateSampler& wanted, const Tenant& tenant);
  Result<std::string> join_sampler(const Client& client);
  Result<std::string> get_sampler(const std::string& name, const Client& client);
  std::string capabilities(const Client& client) const;
  /// Whether the tenant's adapter is what the client asks for.
  Status check_model(const Tenant& tenant, const tinker::CreateModel& wanted) const;
  Status check_base_model(const Tenant& tenant, const std::string& base_model) const;
  std::string tokenizer_of_clients() const;
  void drop_tenant(TenantSlot tenant);
  void end_session(const std::string& name);
  void close_model(const std::string& name);
  void close_sampler(const std::string& name);
  void expire_sessions();
  /// Adds it, and ends the one that was unused longest if there are too many.
  Status add_sampler(const std::string& name, tinker::Sampler sampler);

  // tinker_listings.cc: the REST interface
  std::string base_model_of(TenantSlot tenant) const;
  std::vector<std::pair<TenantSlot, tinker::ListedWeights>> list_weights(
      const Client& client) const;
  std::vector<tinker::ListedModel> list_models(const Client& client) const;
  std::string models_of_client(const Client& client) const;
  Result<std::string> model_of_client(const std::string& name, const Client& client) const;
  Result<std::string> weights_of_model(const std::string& name, const Client& client) const;
  std::string weights_of_client(const Client& client) const;
  Result<std::string> weights_info(const Client& client) const;
  std::string sessions_of_client(const Client& client) const;
  Result<std::string> session_of_client(const std::string& name, const Client& client) const;
  Result<std::string> delete_weights(const std::string& path, const Client& client);
  Result<std::string> expire_weights(const std::string& path, const Client& client);

  // tinker_base.cc: samplers of the base model
  /// The key of its weights, once they are live; none: they are not there.
  AdapterId base_of(TenantSlot tenant) const;
  Status create_base_sampler(uint64_t call, const tinker::CreateSampler& wanted, TenantSlot tenant,
                             const Client& client);
  /// False: it is on its way.
  bool make_base(TenantSlot tenant);
  Result<std::string> add_base_sampler(const tinker::BaseWait& wait, AdapterId base);
  void finish_base(TenantSlot tenant, AdapterId base, PolicyVersion version);
  void refuse_base(TenantSlot tenant, const Error& error);
  void expire_base_waits();
  void look_for_lost_base(TenantSlot tenant, AdapterId adapter, const std::string& detail);

  // tinker_training.cc: requests to the trainer
  Result<std::string> forward_backward(const Client& client);
  Result<std::string> optim_step(const Client& client);
  Result<std::string> save_weights(const Client& client);
  Result<std::string> save_for_sampler(const Client& client);
  Result<std::string> load_weights(const Client& client);
  /// Takes a request of a model in its order.
  Result<std::string> offer(tinker::Job job, int64_t seq, const Client& client);
  /// Takes a request without order: a repeat has the answer of its first.
  Result<std::string> offer_unordered(tinker::Job job, std::string lane, int64_t seq,
                                      const Client& client);
  void enqueue(uint64_t number);
  void send_jobs();
  /// Whether a tenant has a job that could be sent now.
  bool may_send_job() const;
  bool has_room(TenantSlot tenant, tinker::JobKind kind) const;
  void send_job(uint64_t number, tinker::Job& job);
  void end_job(uint64_t number);
  void fail_job(uint64_t number, const Error& error);
  /// One of this actor, before those of clients.
  uint64_t add_own_job(tinker::Job job);
  /// The job of the answer; null: it was given up.
  tinker::Job* answered_job(uint64_t request, const ClientFault& fault);
  /// Fails what the trainer or the engines did not answer in time.
  void expire_jobs();
  /// The ages of a pass that is sent now.
  void set_ages(tinker::Job& job);
  Status on_passed(const PassDone& done);
  Status on_updated(const UpdateDone& done);

  // tinker_weights.cc: what happens to weights
  /// A new model waits while the client of the open one may have gone: until that session ends, or
  /// has a request. A client that starts again at once is served so.
  bool waits_for_session(const tinker::Job& job) const;
  int64_t snapshots_max(TenantSlot tenant) const;
  /// Refuses a job whose turn has come. It may queue a job that comes first: then false.
  Result<bool> prepare(tinker::Job& job);
  Result<bool> prepare_snapshot(const tinker::Job& job);
  Status on_weights_done(const WeightsDone& done);
  void drop_unknown(const WeightsDone& done);
  Status on_policy(const PolicyLive& live);
  void finish_if_live(TenantSlot tenant);
  void finish_published(uint64_t number, tinker::Job& job);
  void open_model(uint64_t number, const tinker::Job& job);
  void drop_snapshot(TenantSlot tenant, AdapterId adapter);
  void forget_snapshot(TenantSlot tenant, AdapterId adapter);
  /// The trainer drops the snapshot before the next job.
  void add_drop_job(TenantSlot tenant, AdapterId adapter);
  void drop_saved(const std::string& path);
  /// Takes back a drop_saved() of the same folder that the trainer has not heard of.
  void keep_saved(const tinker::Saved& saved);
  void expire_saved();
  /// Gives up a snapshot that had this path, unless it is in use. False: it is given up first.
  Result<bool> free_path(TenantSlot tenant, const std::string& path);
  bool is_snapshot_in_use(TenantSlot tenant, AdapterId adapter) const;

  // tinker_samples.cc: samples
  Result<std::string> sample(const Client& client);
  Result<tinker::OpenSample> sample_of(const tinker::Sample& wanted, const Tenant& tenant,
                                       uint64_t number) const;
  void send_waiting();
  bool may_send() const;
  Duration budget_wait(TenantSlot slot, const tinker::TenantState& tenant) const;
  TenantSlot next_tenant() const;
  void send_part(const tinker::PartRef& part);
  void send_cancels();
  Status on_completion(const Completion& completion);
  void part_done(const tinker::PartRef& part, const Completion& completion);
  /// Which update of the tenant's weights made its first token is kept for later passes.
  void keep_sampled(const tinker::OpenSample& sample, const Completion& completion);
  void try_again(const tinker::PartRef& part, const std::string& reason);
  /// Cancels what is sent, and forgets the sample.
  void stop_sample(uint64_t number);
  void fail_sample(uint64_t number, const Error& error);

  SendOptions send_options(TenantSlot tenant) const {
    return for_tenant(tenant).to_origin_of(services().self());
  }
  AdapterId moving_key(TenantSlot tenant) const {
    return AdapterId(services().tenant(tenant).tenancy);
  }

  const TinkerOptions options_;
  // Constant after start.
  Outside* listener_ = nullptr;
  Tokenizer* tokenizer_ = nullptr;
  // Follows from the calls of on_tenant(); not saved.
  std::set<TenantSlot> paused_;
  // Touched only by handlers.
  std::map<TenantSlot, tinker::TenantState> tenants_;
  std::map<std::string, tinker::Session> sessions_;
  std::map<uint64_t, TenantSlot> ended_sessions_;  // by number, the newest
  std::deque<std::string> left_;                   // names of tenants that have left, the newest
  std::map<std::string, tinker::Model> models_;    // open ones
  std::map<std::string, tinker::Sampler> samplers_;
  std::map<std::string, tinker::Saved> saved_;                           // by path
  std::map<uint64_t, tinker::Job> jobs_;                                 // by request
  std::map<uint64_t, tinker::OpenSample> samples_;                       // by request
  std::map<std::pair<TenantSlot, uint64_t>, tinker::PartRef> requests_;  // by GenerateRequest
  std::map<uint64_t, tinker::Poll> polls_;                               // by call
  std::map<uint64_t, tinker::BaseWait> base_waits_;                      // by call
  tinker::RequestOrder order_;
  tinker::AnswerStore answers_;
  std::map<uint64_t, tinker::Asked> asked_;  // by call
  int64_t num_accepts_ = 0;                  // of asked_
  int64_t num_closed_ = 0;
  uint64_t next_session_ = 1;
  uint64_t next_request_ = 1;                            // of clients
  uint64_t next_generate_ = 0;                           // of GenerateRequests
  uint64_t num_used_ = 0;                                // uses of samplers and snapshots
  tinker::TenantLimit queued_bytes_{uint64_t{1} << 28};  // bodies of jobs whose turn has come
  std::optional<Time> armed_;
  std::set<InstanceId> routers_, trainers_;
  bool is_draining_ = false;
  uint32_t num_asked_ = 0;  // by this handler
  Out<GenerateRequest> generate_;
  Out<Cancel> cancel_;
  Out<PassRequest> pass_;
  Out<UpdateRequest> update_;
  Out<WeightsRequest> weights_;
};

}  // namespace primerl
