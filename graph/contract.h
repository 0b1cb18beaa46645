/// Contract: everything that an actor declares about itself. Checks, wiring, replay, schema and
/// docs read only this value. There is no macro, no string switch and no static registration.
///
///   return ContractOf<Router, RouterOptions>("router", "chooses an engine for each request")
///       .option("policy", &RouterOptions::policy, one_of(route_policies()), "how an engine is
///       chosen") .in("generate", &Router::on_generate, "a prompt to continue") .in("load",
///       &Router::on_load, "an engine's running totals", latest_wins()) .out("prefill",
///       &Router::prefill_, "to the chosen engine", addressed());
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/actor.h"
#include "graph/options.h"
#include "graph/port.h"
#include "graph/tenant.h"

namespace primerl {

/// How an output with several targets selects among them. `kToOne` must have only one target.
enum class Routing { kToOne, kBroadcast, kAddressed, kKeyed, kToOrigin };
std::string_view to_string(Routing routing);

/// `pooled` actors must return quickly; `own_thread` actors may block.
enum class ThreadClass { kPooled, kOwnThread };

/// A number that is known when the plan is made: a constant, an option of the node, or a value
/// computed from the tenants.
struct Amount {
  std::function<int64_t(const void* options, std::span<const Tenant> tenants)> value;
  std::string text;  // "1", "max_inflight", "largest group_size"
};
Amount exactly(int64_t count);
/// The largest value of a tenant's field over all tenants.
Amount tenant_max(int64_t Tenant::*field, std::string text);
template <class S, class M>
Amount option_value(M S::*member, std::string text) {
  return {[member](const void* options, std::span<const Tenant>) {
            return static_cast<int64_t>(static_cast<const S*>(options)->*member);
          },
          std::move(text)};
}

struct InputPort {
  std::string name;
  std::string doc;
  const MessageType* type = nullptr;
  bool is_optional = false;  // may stay unconnected
  bool serves_runs = false;  // see serves_runs()
  /// The same, but only with these options of the node; empty = as is_optional says.
  std::function<bool(const void* options)> is_optional_if = {};
  std::optional<Amount> at_most;  // most messages in flight, for a feedback edge
  bool latest_wins = false;       // only the newest is kept, per sender and tenant; replaced ones
                                  // are counted
  std::string handles_of;         // name of a resource use; see handles_of()
  std::function<Status(Actor&, const void* message)> handle;
  /// Answers a message whose handler failed; empty if no answer is needed.
  std::function<void(Actor&, const void* message, const Error& error)> refuse;
};

struct OutputPort {
  std::string name;
  std::string doc;
  const MessageType* type = nullptr;
  bool is_optional = false;
  bool serves_runs = false;
  std::function<bool(const void* options)> is_optional_if = {};  // as for an input
  bool is_recorded = false;                                      // see recorded()
  std::string handles_of;  // name of a resource use; see handles_of()
  Routing routing = Routing::kToOne;
  Amount burst = exactly(1);                         // most messages of one handler
  Amount work_burst = exactly(0);                    // most messages of one work call
  std::optional<Amount> at_most;                     // most messages in flight, for a feedback edge
  std::optional<Amount> bytes_max;                   // most bytes of one message of one tenant,
                                                     // without Blobs
  std::function<uint64_t(const void* message)> key;  // for kKeyed
  std::function<OutBase&(Actor&)> bind;
};

struct TimerPort {
  std::string name;
  std::string doc;
  std::function<Status(Actor&)> handle;
};

struct ResourceUse {
  std::string name;  // used in start(): resources.get<Engine>("engine")
  std::string kind;  // R::kResourceKind
  std::function<std::string(const void* options)>
      reference;  // the name in the file; empty = the only resource of that kind
};

/// A requirement of a node on each of its tenants, beyond the range of the tenant's own option.
struct TenantDemand {
  std::string key;  // in `[tenant.x]`, for example "group_size"; an error points there
  /// The fault, e.g. "has one rollout a group"; empty if there is none.
  std::function<std::string(const void* options, const Tenant& tenant)> fault;
  std::string help;  // what to write instead
};

/// A file that start() reads; `check` reads it too.
struct FileCheck {
  std::string option;  // the option that names the file
  /// The error that start() would return; it names the file and the position in it.
  std::function<Status(const void* options)> fault;
};

/// The state of an actor that a cut saves (docs/design/recovery.md): everything that its handlers
/// change.
struct StateOfActor {
  enum class Kind {
    kUnsaid,  // not stated: such a contract is refused
    kNone,    // stateless()
    kFields,  // state(): saved between two steps, read by a new actor after its start()
  };
  Kind kind = Kind::kUnsaid;
  std::string schema;  // for kFields, like MessageType::schema
  void (*write)(FieldWriter& out, const Actor& actor) = nullptr;  // for kFields
  void (*read)(FieldReader& in, Actor& actor) = nullptr;
};

struct Contract {
  std::string name;
  std::string doc;
  OptionSet options;
  StateOfActor state;
  std::vector<InputPort> inputs;
  std::vector<OutputPort> outputs;
  std::vector<TimerPort> timers;
  std::vector<ResourceUse> resources;
  ThreadClass thread_class = ThreadClass::kPooled;
  bool works = false;           // has work()
  bool is_source = false;       // its work() starts rollouts; a drain stops it first
  bool is_single = false;       // one instance (per tenant)
  bool is_one_tenant = false;   // an instance serves one tenant; several tenants need `per_tenant`
  bool is_for_loops = false;    // a tenant that a client trains has no instance of it: for_loops()
  bool is_teacher = false;      // its tokenizer's model computes tokens of its tenants' policies
  bool asks_outside = false;    // the environment or rewards of its tenant may: see outside.h
  bool is_restartable = false;  // an instance that failed or is stuck is replaced, with its last
                                // state
  bool stops_on_error = false;  // a failed handler ends the run, unless the graph sets `on_error`
  /// If the node has several instances, all except the first have no state that is needed: a
  /// process that has only such instances is restarted alone.
  bool replicas_are_expendable = false;
  std::vector<TenantDemand> demands;
  std::vector<FileCheck> file_checks;
  /// Whether it gets tasks from its tenant's environment; empty = it does not.
  std::function<bool(const void* options)> takes_tasks;
  /// How many examples its file gives in one epoch of supervised training; 0 = its tenants' tasks
  /// give them. Empty = the actor gives no examples.
  std::function<Result<int64_t>(const void* options)> num_examples = {};
  std::function<std::unique_ptr<Actor>(const void* options)> make;
  /// The same actor with a scripted environment or file; empty for an actor that uses nothing
  /// outside.
  std::function<std::unique_ptr<Actor>(const void* options)> make_scripted;

  const InputPort* find_input(std::string_view port) const;
  const OutputPort* find_output(std::string_view port) const;
  std::vector<std::string> input_names() const;
  std::vector<std::string> output_names() const;
};

// Attributes of ports, written after the doc text.
struct PortAttribute {
  std::function<void(InputPort&)> on_input;
  std::function<void(OutputPort&)> on_output;
};
PortAttribute optional_port();
/// The port may stay unconnected, unless the environment of a tenant drives rollouts.
PortAttribute serves_runs();
PortAttribute broadcast();
PortAttribute addressed();
PortAttribute to_origin();
PortAttribute burst(Amount amount);
PortAttribute burst(int64_t amount);
PortAttribute work_burst(Amount amount);
PortAttribute work_burst(int64_t amount);
PortAttribute at_most(Amount amount);
PortAttribute at_most(int64_t amount);
PortAttribute latest_wins();
/// For an output whose messages cannot be computed again cheaply or at all (an environment, an
/// engine or a learner made them). The trace stores their payloads when they are sent, unless an
/// edge says otherwise.
PortAttribute recorded();
/// The messages carry handles into the resource that the actor uses under this name. `check`
/// requires both ends of an edge to use the same copy of it, because other copies cannot resolve a
/// handle.
PortAttribute handles_of(std::string use);
/// For a message whose size depends on the tenant's numbers: `check` compares it with
/// kMessageBytesMax.
PortAttribute message_bytes(Amount amount);

template <class S, class M>
PortAttribute at_most(M S::*member, std::string text) {
  return at_most(option_value(member, std::move(text)));
}
/// The port may stay unconnected if this option of the node is true.
template <class S>
PortAttribute optional_if(bool S::*member) {
  const auto is_set = [member](const void* options) {
    return static_cast<const S*>(options)->*member;
  };
  return {[is_set](InputPort& port) { port.is_optional_if = is_set; },
          [is_set](OutputPort& port) { port.is_optional_if = is_set; }};
}
/// Routes by a field of the message: equal keys go to the same instance, in order.
template <Message T, class M>
PortAttribute keyed_by(M T::*field) {
  PortAttribute attribute;
  attribute.on_output = [field](OutputPort& port) {
    port.routing = Routing::kKeyed;
    port.key = [field](const void* message) {
      const auto& value = static_cast<const T*>(message)->*field;
      if constexpr (std::is_same_v<M, std::string>)
        return stable_hash(value);
      else if constexpr (std::is_integral_v<M>)
        return mix(static_cast<uint64_t>(value), 0);
      else
        return mix(static_cast<uint64_t>(value.value), 0);
    };
  };
  return attribute;
}
/// If the handler fails, the group calls `member` with the message and the error.
template <class A, Message T>
PortAttribute refuse_with(void (A::*member)(const T&, const Error&)) {
  PortAttribute attribute;
  attribute.on_input = [member](InputPort& port) {
    CHECK(port.type == &message_type<T>(), "refuse_with() expects another message than its input");
    port.refuse = [member](Actor& actor, const void* message, const Error& error) {
      (static_cast<A&>(actor).*member)(*static_cast<const T*>(message), error);
    };
  };
  return attribute;
}

/// Builds the Contract of actor class A, which is constructed from options S. It must state what
/// the actor's state is: state() or stateless().
template <class A, class S, bool kSaysState = false>
class ContractOf {
 public:
  ContractOf(std::string name, std::string doc) {
    contract_.name = std::move(name);
    contract_.doc = std::move(doc);
    contract_.options = OptionsOf<S>().take();
    contract_.make = [](const void* options) -> std::unique_ptr<Actor> {
      return std::make_unique<A>(*static_cast<const S*>(options));
    };
  }
  /// Everything that handlers change, by name; members that start() sets may be left out. `fields`
  /// is a lambda without captures, written like fields() of a message:
  ///
  ///   .state([](auto& f) { f("live", &Rollout::live_)("groups", &Rollout::groups_); })
  template <class Fields>
  ContractOf<A, S, true> state(Fields) && {
    static_assert(std::is_empty_v<Fields>, "the fields of a state are named without captures");
    contract_.state.kind = StateOfActor::Kind::kFields;
    wire::Describe<A> describe;
    Fields{}(describe);
    contract_.state.schema = std::move(describe.text);
    contract_.state.write = [](FieldWriter& out, const Actor& actor) {
      wire::Count<A> count;
      Fields{}(count);
      out.begin_struct(count.fields);
      wire::Put<A> put{out, static_cast<const A&>(actor)};
      Fields{}(put);
      out.end_struct();
    };
    contract_.state.read = [](FieldReader& in, Actor& actor) {
      wire::Count<A> count;
      Fields{}(count);
      in.begin_struct(count.fields);
      wire::Take<A> take{in, static_cast<A&>(actor)};
      Fields{}(take);
      in.end_struct();
    };
    return ContractOf<A, S, true>(std::move(contract_));
  }
  /// No handler changes anything that a later one reads.
  ContractOf<A, S, true> stateless() && {
    contract_.state.kind = StateOfActor::Kind::kNone;
    return ContractOf<A, S, true>(std::move(contract_));
  }

  template <class M>
  ContractOf&& option(std::string name, M S::*member, Constraint constraint, std::string doc) && {
    OptionSet one =
        OptionsOf<S>().field(std::move(name), member, std::move(constraint), std::move(doc)).take();
    contract_.options.fields.push_back(std::move(one.fields.front()));
    return std::move(*this);
  }
  /// A key that files had before; `where` says what to write instead.
  ContractOf&& moved(std::string name, std::string where) && {
    contract_.options.moved.push_back({std::move(name), std::move(where)});
    return std::move(*this);
  }
  /// `handler` and `member` belong to A or to a base class of A.
  template <class B, class T, class... Attributes>
  ContractOf&& in(std::string name, Status (B::*handler)(const T&), std::string doc,
                  Attributes... attributes) && {
    static_assert(Message<T>, "a handler takes a message by const reference");
    InputPort port;
    port.name = std::move(name);
    port.doc = std::move(doc);
    port.type = &message_type<T>();
    port.handle = [handler](Actor& actor, const void* message) {
      return (static_cast<A&>(actor).*handler)(*static_cast<const T*>(message));
    };
    (apply(attributes, port), ...);
    contract_.inputs.push_back(std::move(port));
    return std::move(*this);
  }
  template <class B, class T, class... Attributes>
  ContractOf&& out(std::string name, Out<T> B::*member, std::string doc,
                   Attributes... attributes) && {
    OutputPort port;
    port.name = std::move(name);
    port.doc = std::move(doc);
    port.type = &message_type<T>();
    port.bind = [member](Actor& actor) -> OutBase& { return static_cast<A&>(actor).*member; };
    (apply(attributes, port), ...);
    contract_.outputs.push_back(std::move(port));
    return std::move(*this);
  }
  ContractOf&& timer(std::string name, Status (A::*handler)(), std::string doc) && {
    contract_.timers.push_back({std::move(name), std::move(doc), [handler](Actor& actor) {
                                  return (static_cast<A&>(actor).*handler)();
                                }});
    return std::move(*this);
  }
  /// `member` has the name from the file; this call also declares the option.
  template <class R>
  ContractOf&& uses(std::string name, std::string S::*member, std::string doc) && {
    const std::string kind(R::kResourceKind);
    const std::string target = kind == "tokenizer" ? "model" : "resource:" + kind;
    ResourceUse use{name, kind, [member](const void* options) {
                      return static_cast<const S*>(options)->*member;
                    }};
    contract_.resources.push_back(std::move(use));
    return std::move(*this).option(kind == "tokenizer" ? "model" : std::move(name), member,
                                   refers_to(target), std::move(doc));
  }
  /// `fault(options, tenant)` returns the fault of `[tenant.x] key`, or an empty string.
  template <class Fault>
  ContractOf&& demands(std::string key, Fault fault, std::string help) && {
    contract_.demands.push_back({std::move(key),
                                 [fault](const void* options, const Tenant& tenant) -> std::string {
                                   return fault(*static_cast<const S*>(options), tenant);
                                 },
                                 std::move(help)});
    return std::move(*this);
  }
  /// `read(options)` reads the file that `option` names, as start() does, and returns its error.
  ContractOf&& reads_file(std::string option, Status (*read)(const S& options)) && {
    contract_.file_checks.push_back({std::move(option), [read](const void* options) {
                                       return read(*static_cast<const S*>(options));
                                     }});
    return std::move(*this);
  }
  /// How the actor is created for a rehearsal (`check`, `run`): files, processes and everything
  /// else outside are scripted; its messages are unchanged.
  ContractOf&& scripted(std::unique_ptr<Actor> (*make)(const S& options)) && {
    contract_.make_scripted = [make](const void* options) {
      return make(*static_cast<const S*>(options));
    };
    return std::move(*this);
  }
  /// How the actor is created, if its options are not enough.
  ContractOf&& made_by(std::function<std::unique_ptr<Actor>(const S& options)> make) && {
    contract_.make = [make = std::move(make)](const void* options) {
      return make(*static_cast<const S*>(options));
    };
    return std::move(*this);
  }
  /// It sends its tenants' tasks; `check` reads some of them. `when(options)` returns whether it
  /// does.
  ContractOf&& takes_tasks(bool (*when)(const S& options) = nullptr) && {
    contract_.takes_tasks = [when](const void* options) {
      return when == nullptr || when(*static_cast<const S*>(options));
    };
    return std::move(*this);
  }
  /// It sends examples with their answers, one after the other; `num_examples(options)` is how many
  /// its file has, or 0 without a file.
  ContractOf&& gives_examples(Result<int64_t> (*num_examples)(const S& options)) && {
    contract_.num_examples = [num_examples](const void* options) {
      return num_examples(*static_cast<const S*>(options));
    };
    return std::move(*this);
  }
  ContractOf&& works() && {
    contract_.works = true;
    return std::move(*this);
  }
  ContractOf&& source() && {
    contract_.works = contract_.is_source = true;
    return std::move(*this);
  }
  ContractOf&& own_thread() && {
    contract_.thread_class = ThreadClass::kOwnThread;
    return std::move(*this);
  }
  ContractOf&& single() && {
    contract_.is_single = true;
    return std::move(*this);
  }
  ContractOf&& one_tenant() && {
    contract_.is_one_tenant = true;
    return std::move(*this);
  }
  /// It is a part of the loop that trains a tenant: it gives tasks or examples, plays rollouts or
  /// judges them. An instance of a tenant that a client trains is vacant.
  ContractOf&& for_loops() && {
    contract_.is_for_loops = true;
    return std::move(*this);
  }
  /// Its engine computes tokens that another tokenizer made, so `check` compares both.
  ContractOf&& teaches() && {
    contract_.is_teacher = true;
    return std::move(*this);
  }
  /// If its tenant asks something outside, resources.get_if<Outside>("outside") asks it.
  ContractOf&& asks_outside() && {
    contract_.asks_outside = true;
    return std::move(*this);
  }
  ContractOf&& stops_on_error() && {
    contract_.stops_on_error = true;
    return std::move(*this);
  }
  ContractOf&& expendable_replicas() && {
    contract_.replicas_are_expendable = true;
    return std::move(*this);
  }
  ContractOf&& restartable() && {
    contract_.is_restartable = true;
    return std::move(*this);
  }
  operator Contract() && {
    static_assert(kSaysState,
                  "state what a cut must save of this actor: .state([](auto& f) { f(\"name\", "
                  "&Actor::member_); }), or .stateless()");
    return std::move(contract_);
  }

 private:
  template <class, class, bool>
  friend class ContractOf;
  explicit ContractOf(Contract contract) : contract_(std::move(contract)) {}
  static void apply(const PortAttribute& attribute, InputPort& port) {
    CHECK(attribute.on_input != nullptr, "this attribute is for outputs");
    attribute.on_input(port);
  }
  static void apply(const PortAttribute& attribute, OutputPort& port) {
    CHECK(attribute.on_output != nullptr, "this attribute is for inputs");
    attribute.on_output(port);
  }
  Contract contract_;
};

}  // namespace primerl
