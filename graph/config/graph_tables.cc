// The options of `[graph]`, `[graph.alarms]`, `[graph.tenant_limits]` and `[trace]`.
#include "graph/config/tables.h"

namespace primerl {
namespace {

OptionSet alarm_options() {
  using A = AlarmSettings;
  return OptionsOf<A>()
      .field("window", &A::window, between(1, 1000) | unit("steps"),
             "steps of the mean that is compared with a bound, and first steps that it is compared "
             "with")
      .field("entropy_collapse", &A::entropy_collapse, from_below(0, 1),
             "raised when the entropy is below this part of that of the first steps; 0 = off")
      .field("mismatch_kl", &A::mismatch_kl, at_least(0),
             "raised when the mismatch KL is above 5 times that of the first steps, and always "
             "above this many nats, but never below a fifth of it; 0 = off")
      .field("effective_size", &A::effective_size, from_below(0, 1),
             "raised when the effective sample size is below this part of the batch; 0 = off")
      .field("all_filtered", &A::all_filtered, at_least(0),
             "raised when more than this many batches of groups were filtered since the last step; "
             "0 = off")
      .take();
}

}  // namespace

const OptionSet& graph_options() {
  using G = GraphSettings;
  static const OptionSet options =
      OptionsOf<G>()
          .field("name", &G::name, at_least(1),
                 "the run's name; if it is not written, the file's name")
          .field("description", &G::description, any(), "one sentence for people")
          .field("plugins", &G::plugins, between(0, kPluginsMax) | unit("plugins"),
                 "shared libraries with your own actors, environments, rewards and routing "
                 "policies; paths are relative to this file")
          .field("seed", &G::seed, at_least(0), "seed of all random numbers")
          .field("tenants_max", &G::tenants_max, between(0, 8192) | unit("tenants"),
                 "most tenants that the graph may have; 0 is no limit")
          .field("pool_threads", &G::pool_threads, between(0, 1024) | unit("threads"),
                 "threads of the actor pool; 0 is 1 on machines of up to 4 cores, else a quarter")
          .field("stall_after", &G::stall_after, at_least(1),
                 "without a step or progress for this long, the run reports a stall")
          .field("handler_alarm_after", &G::handler_alarm_after, at_least(0),
                 "a handler or work call without progress for this long is reported once, and the "
                 "run continues; 0 = no report")
          .field("drain_max", &G::drain_max, above(0),
                 "longest drain at the end of a run; more than the longest environment_timeout")
          .field("dead_after", &G::dead_after, at_least(1),
                 "a process that sends no heartbeat for this long is killed; a long step of its "
                 "engine or learner delays no heartbeat")
          .field("abandoned_max", &G::abandoned_max, between(0, 1024) | unit("threads"),
                 "stuck environment threads that are replaced")
          .field("memory_max", &G::memory_max, at_least(0) | unit("bytes"),
                 "most memory of the engines and learners of a process on the CPU, unless its "
                 "place states another limit; 0 is no limit")
          .field("restarts_max", &G::restarts_max, between(0, 1 << 16) | unit("restarts"),
                 "most restarts of a process that died, within restart_window; if it had state of "
                 "the run, the run resumes; 0 stops the run instead")
          .field("restart_window", &G::restart_window, above(0),
                 "time over which restarts_max counts")
          .table("alarms", &G::alarms, alarm_options(), "when a run raises an alarm")
          .take();
  return options;
}

const OptionSet& tenant_limits_options() {
  using L = TenantLimits;
  static const OptionSet options =
      OptionsOf<L>()
          .field("tenants_max", &L::tenants_max,
                 between(1, static_cast<double>(kTenantSlotsMax)) | unit("tenants") | required(),
                 "slots: most tenants at once, those of the file and those that join")
          .field("rank", &L::rank, between(1, 512) | required(),
                 "largest rank of an adapter; each tenant trains one")
          .field("seq_len", &L::seq_len, between(1, 1 << 24) | unit("tokens"), "longest trajectory")
          .field("group_size", &L::group_size, between(1, 1 << 16) | unit("rollouts"),
                 "most rollouts of one task")
          .field("batch_size", &L::batch_size, between(1, 1 << 20) | unit("rollouts"),
                 "most rollouts of one training step")
          .field("inflight", &L::inflight, count_from(1) | unit("rollouts"),
                 "most rollouts of a tenant at once")
          .field("max_off_policy_steps", &L::max_off_policy_steps,
                 between(0, 1 << 16) | unit("steps"), "largest max_off_policy_steps")
          .field("turns_max", &L::turns_max, between(1, 1 << 16) | unit("turns"),
                 "most turns of one trajectory")
          .field("tokens_per_second", &L::tokens_per_second, between(0, 1 << 30) | unit("tokens"),
                 "most prompt tokens that are not cached and sampled tokens of a tenant's rollouts "
                 "and requests, a second, in the long run; 0 = no limit")
          .field("clients", &L::clients, any(),
                 "tenants may have client = true: memory is planned for their snapshots, and a "
                 "short file has a node that serves them")
          .field("snapshots", &L::snapshots,
                 between(1, static_cast<double>(kClientSnapshotsMax)) | unit("snapshots"),
                 "most weights for samplers that one client keeps")
          .field("targets", &L::targets, between(1, 16) | unit("linears"),
                 "linear layers that adapters may have; [\"all-linear\"] means all except routers "
                 "and the head, lm_head")
          .field("optimizers", &L::optimizers, between(0, 16) | unit("kinds"),
                 "kinds of optimizers that tenants may name; [] is the learner's alone")
          .field("environments", &L::environments, between(0, 256) | unit("environments"),
                 "environments that tenants may have, besides services; [] means all")
          .field("rewards", &L::rewards, between(0, 256) | unit("rewards"),
                 "rewards that tenants may have, besides services; [] means all")
          .field("data_root", &L::data_root, refers_to("folder"),
                 "files and folders that tenants name must be in this folder, also after their "
                 "links are followed; without it any file may be named")
          .take();
  return options;
}

const OptionSet& trace_options() {
  using T = TraceSettings;
  static const OptionSet options =
      OptionsOf<T>()
          .field("level", &T::level, one_of({"process", "power", "ring", "off"}),
                 "after which failure a finished step is still in the record: process = the death "
                 "of its process, power = a power cut (except the last sync_every); ring keeps the "
                 "newest steps in memory and writes them when the run fails; off records nothing")
          .field(
              "full", &T::full, one_of({"block", "gap"}),
              "if the disk is too slow: block waits, gap continues and marks the trace incomplete")
          .field("bytes_max", &T::bytes_max, at_least(4 << 20) | unit("bytes"),
                 "size of the trace; beyond it the oldest segments from before the last checkpoint "
                 "are removed")
          .field("segment_bytes", &T::segment_bytes, between(2 << 20, 1 << 30) | unit("bytes"),
                 "size of one file of the trace")
          .field("ring_bytes", &T::ring_bytes, at_least(1 << 20) | unit("bytes"),
                 "memory of the level ring")
          .field("sync_every", &T::sync_every, between(0.001, 60),
                 "how often the level power syncs the trace to the disk")
          .field("pack", &T::pack, any(), "compress full segments in the background")
          .field("cut_every", &T::cut_every, above(0),
                 "how often a process without a learner saves its state; a resumed run follows the "
                 "record only from there; a process with a learner saves at every checkpoint, and "
                 "asks a tenant for one that has none for so long after the others")
          .field("cut_steps", &T::cut_steps, between(1000, int64_t{1} << 40) | unit("steps"),
                 "steps of a process after which it saves its state earlier")
          .take();
  return options;
}

}  // namespace primerl
