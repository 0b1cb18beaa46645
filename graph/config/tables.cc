#include "graph/config/tables.h"

namespace primerl {
namespace {

OptionSet sampling_options() {
  using S = TenantSampling;
  return OptionsOf<S>()
      .field("temperature", &S::temperature, zero_or(between(0.001, 100)),
             "0 takes the likeliest token")
      .field("top_k", &S::top_k, between(0, 1 << 24),
             "sample from the k likeliest tokens; 0 keeps all")
      .field("top_p", &S::top_p, above_up_to(0, 1),
             "sample from the likeliest tokens with this total probability")
      .field("min_p", &S::min_p, from_below(0, 1),
             "sample from tokens with at least this probability, relative to the likeliest")
      .field("max_tokens", &S::max_tokens, between(1, 1 << 20) | unit("tokens"),
             "new tokens of one turn")
      .field("stop", &S::stop, between(0, 16) | unit("texts"),
             "texts that end a turn at the token that completes one; 1 to 256 bytes each")
      .field("stop_ids", &S::stop_ids, between(0, 64) | unit("tokens"),
             "tokens that end a turn, besides the model's own")
      .field("ignore_eos", &S::ignore_eos, any(), "the model's own end tokens do not end a turn")
      .field("include_stop", &S::include_stop, any(),
             "whether the text that environment and reward read ends with the stop text, or the "
             "text of the stop token; training always includes the stop")
      .take();
}

OptionSet filter_options() {
  using F = TenantFilters;
  return OptionsOf<F>()
      .field("zero_advantage", &F::zero_advantage, any(),
             "filter out groups whose rewards are all equal")
      .field("truncated", &F::truncated, any(), "drop rollouts that max_tokens or seq_len cut off")
      .field("repetition_max", &F::repetition_max, count_from(0) | unit("tokens"),
             "drop rollouts with more sampled tokens in a row that have a probability above 0.99; "
             "0 = off")
      .field("gibberish_from", &F::gibberish_from, count_from(0),
             "drop rollouts with a token of this id or above whose log-probability is below "
             "-ln(vocabulary) - 2; 0 = off")
      .take();
}

OptionSet chat_options() {
  using C = TenantChat;
  return OptionsOf<C>()
      .field("prompts", &C::prompts, one_of({"plain", "user"}),
             "what a task without messages becomes: plain = its text as it is, user = one message "
             "of a user in the model's chat template")
      .field("name", &C::name, any(),
             "which of several templates of the model; \"\" = the one named default")
      .field("kwargs", &C::kwargs, any(),
             "variables of the template as a JSON object: '{\"enable_thinking\": false}'")
      .field("date", &C::date, any(),
             "the day that templates print, like 2026-11-26; \"\" = the day (UTC) on which the run "
             "started first")
      .field("parser", &C::parser,
             one_of({"auto", "none", "hermes", "qwen3", "qwen3_xml", "glm", "llama3", "harmony",
                     "deepseek"}),
             "how reasoning and tool calls of answers are read; auto decides by the template")
      .field("history", &C::history, one_of({"exact", "template"}),
             "later turns: exact = the new messages follow the sampled tokens, template = the "
             "whole conversation is rendered again, and where it differs from the tokens so far a "
             "new sample of the rollout begins")
      .take();
}

OptionSet eval_options() {
  using E = TenantEval;
  return OptionsOf<E>()
      .field("interval", &E::interval, count_from(0) | unit("versions"),
             "versions from one evaluation to the next; 0 = none")
      .field("at_start", &E::at_start, any(), "evaluate the version that a new run starts from")
      .field("at_end", &E::at_end, any(),
             "evaluate the last version, and end the run only after it")
      .field("samples", &E::samples, between(1, 1 << 12) | unit("rollouts"),
             "rollouts of each row: k of avg@k and pass@k")
      .field("rows", &E::rows, between(0, int64_t{1} << 30) | unit("rows"),
             "rows of one evaluation; 0 = all rows in the holdout of the data set, or all rows if "
             "it has none")
      .field("temperature", &E::temperature, at_least(-1),
             "instead of sampling.temperature; -1 = the same")
      .field("top_p", &E::top_p, between(-1, 1), "instead of sampling.top_p; -1 = the same")
      .field("max_tokens", &E::max_tokens, between(0, 1 << 20) | unit("tokens"),
             "instead of sampling.max_tokens; 0 = the same")
      .field("pass_reward", &E::pass_reward, any(),
             "a rollout passes if its reward is this or more")
      .take();
}

OptionSet adapter_options() {
  using A = TenantAdapter;
  return OptionsOf<A>()
      .field("rank", &A::rank, between(0, 512) | required(),
             "columns of A and rows of B; 0 trains all weights")
      .field("alpha", &A::alpha, between(0, 1 << 20),
             "its output is scaled by alpha / rank; 0 means twice the rank")
      .field("targets", &A::targets, between(1, 16) | unit("linears"),
             "the linear layers that get one, by their Hugging Face names: [\"q_proj\", "
             "\"v_proj\"]; [\"all-linear\"] means all except routers and the head, lm_head")
      .field("rslora", &A::rslora, any(), "scale by alpha / sqrt(rank) instead")
      .field("dropout", &A::dropout, from_below(0, 1),
             "share of the input of each A that training steps set to 0; the rest is scaled up")
      .field("path", &A::path, any(),
             "a PEFT folder that it starts from, relative to this file; without it, the output of "
             "a new adapter is 0")
      .take();
}

OptionSet loss_options() {
  using L = TenantLoss;
  const Constraint number = at_least(-1);
  return OptionsOf<L>()
      .field("kind", &L::kind, any(), "the objective; \"\" = the learner's")
      .field("clip_low", &L::clip_low, number,
             "how far below mu or 1 a token may be; -1 = the learner's, or the objective's own if "
             "the learner has another")
      .field("clip_high", &L::clip_high, number, "how far above; -1 as in clip_low")
      .field("advantage_weight", &L::advantage_weight, number,
             "weight of the policy-gradient term; -1 as in clip_low")
      .field("kl_weight", &L::kl_weight, number, "weight of (log pi - log mu)^2; -1 as in clip_low")
      .field("clip_dual", &L::clip_dual, number,
             "most times |advantage| that a token with a negative one costs; 0 = no limit, -1 as "
             "in clip_low")
      .field("weight_low", &L::weight_low, number, "lower limit of pi / mu; -1 as in clip_low")
      .field("weight_high", &L::weight_high, number, "upper limit of pi / mu; -1 as in clip_low")
      .field("moment_max", &L::moment_max, number,
             "most mean (log pi - log mu)^2 of a step; -1 as in clip_low")
      .field("proximal_share", &L::proximal_share, between(-1, 1),
             "how far the proximal policy is from mu to pi; -1 as in clip_low")
      .field("reference_weight", &L::reference_weight, number,
             "weight of the distance from the teacher, or from the base of the adapter; -1 as in "
             "clip_low")
      .field("jsd_beta", &L::jsd_beta, between(-1, 1),
             "gkd: 0 = forward KL, 1 = reverse KL, between: their mixture; -1 as in clip_low")
      .field("mean", &L::mean, one_of({"", "token", "sequence", "constant"}),
             "what counts the same in a step; \"\" as -1 in clip_low")
      .field("mean_tokens", &L::mean_tokens, count_from(0) | unit("tokens"),
             "divisor of a sequence for mean = \"constant\"; 0 = the learner's, or seq_len")
      .take();
}

OptionSet advantage_options() {
  using A = TenantAdvantage;
  return OptionsOf<A>()
      .field("kind", &A::kind, one_of({"", "mean", "leave_one_out", "z_score", "max_rl", "batch"}),
             "how rewards of a group, or of a batch, become advantages; \"\" = the objective's")
      .field("length_weight", &A::length_weight, at_least(0),
             "a reward counts as reward / (1 + length_weight * sampled tokens / their mean)")
      .field("overlong_from", &A::overlong_from, count_from(0) | unit("tokens"),
             "sampled tokens from which an answer costs reward")
      .field("overlong_to", &A::overlong_to, count_from(0) | unit("tokens"),
             "sampled tokens from which it costs 1; 0 = off")
      .take();
}

OptionSet teacher_options() {
  using T = TenantTeacher;
  return OptionsOf<T>()
      .field("model", &T::model, any() | required(),
             "the model of the teacher, a table [model.*]; \"\" = no teacher")
      .field("timeout", &T::timeout, above(0),
             "from a group to the log-probabilities of all its tokens")
      .field("top_k", &T::top_k, between(0, kTeacherTopKMax) | unit("tokens"),
             "likeliest tokens that it gives at each sampled token, for loss.kind = \"gkd\"; 0 = "
             "none")
      .take();
}

OptionSet optimizer_options() {
  using O = TenantOptimizer;
  const Constraint number = at_least(-1), fraction = from_below(-1, 1);
  return OptionsOf<O>()
      .field("kind", &O::kind, any(), "the optimizer; \"\" = the learner's")
      .field("lr", &O::lr, at_least(-1), "learning rate after the warm-up; -1 = the learner's")
      .field("weight_decay", &O::weight_decay, number, "weight decay; -1 = the learner's")
      .field("beta1", &O::beta1, fraction,
             "decay of the first moment; -1 = the learner's, or the kind's own for another kind")
      .field("beta2", &O::beta2, fraction, "decay of the second moment; -1 as in beta1")
      .field("epsilon", &O::epsilon, number, "added to the root; -1 as in beta1")
      .field("momentum", &O::momentum, fraction, "decay of earlier gradients; -1 as in beta1")
      .field("decay_rate", &O::decay_rate, number, "of adafactor; -1 as in beta1")
      .field("update_clip", &O::update_clip, number, "of adafactor; -1 as in beta1")
      .field("scale_min", &O::scale_min, number, "of adafactor; -1 as in beta1")
      .field("max_norm", &O::max_norm, at_least(-1),
             "gradients are clipped to this L2 norm; 0 = off, -1 = the learner's")
      .take();
}

OptionSet schedule_options() {
  using S = TenantSchedule;
  return OptionsOf<S>()
      .field("kind", &S::kind, one_of({"", "constant", "linear", "cosine", "wsd"}),
             "how the learning rate decreases; \"\" = the learner's")
      .field("warmup_steps", &S::warmup_steps, between(-1, INT32_MAX) | unit("steps"),
             "first steps, in which the rate rises to lr; -1 = the learner's")
      .field("decay_steps", &S::decay_steps, between(-1, INT32_MAX) | unit("steps"),
             "last steps of max_steps, in which the rate falls to min_lr; -1 = the learner's")
      .field("min_lr", &S::min_lr, at_least(-1),
             "learning rate at the end of the decay; -1 = the learner's")
      .take();
}

OptionSet make_tenant_options() {
  using T = Tenant;
  auto options =
      OptionsOf<T>()
          .field("client", &T::is_client, any(),
                 "a client trains it by halves of a step: it has no environment, groups or batches")
          .field("snapshots", &T::snapshots,
                 between(0, static_cast<double>(kClientSnapshotsMax)) | unit("snapshots"),
                 "weights for samplers that its client keeps; the tinker node may keep fewer; 0: "
                 "all that the graph allows")
          .field("group_size", &T::group_size, between(1, 1 << 16) | unit("rollouts"),
                 "rollouts of one task")
          .field("batch_size", &T::batch_size, between(1, 1 << 20) | unit("rollouts"),
                 "rollouts of one training step; a multiple of group_size")
          .field("max_off_policy_steps", &T::max_off_policy_steps,
                 between(0, 1 << 16) | unit("steps"),
                 "most off-policy steps of rollouts that train; 0 is strictly on-policy")
          .field("max_steps", &T::max_steps, count_from(1) | unit("steps"),
                 "training steps of the run")
          .field("epochs", &T::epochs, count_from(0) | unit("epochs"),
                 "ends the run after this many passes over the rows of the data set or the "
                 "examples of supervised training; 0 = only "
                 "max_steps ends it; if max_steps is not written, it is the steps of all epochs")
          .field("seq_len", &T::seq_len, between(1, 1 << 24) | unit("tokens"),
                 "longest trajectory; if it is not written, the model's limit when that is smaller")
          .field("turns_max", &T::turns_max, between(1, 1 << 16) | unit("turns"),
                 "turns of one trajectory")
          .field("checkpoint_every", &T::checkpoint_every, count_from(0) | unit("steps"),
                 "steps between checkpoints; 0 writes only one at the end")
          .field("keep_last", &T::keep_last, count_from(0) | unit("checkpoints"),
                 "checkpoints kept; 0 keeps all")
          .field("keep_every", &T::keep_every, count_from(0) | unit("checkpoints"),
                 "every K-th checkpoint is never removed; 0: only keep_last counts")
          .field("keep_best", &T::keep_best, count_from(0) | unit("checkpoints"),
                 "this many checkpoints with the best values of best_by stay too; 0: none")
          .field("best_by", &T::best_by, any(),
                 "metric of a training step for keep_best: the largest is best, with \"-\" before "
                 "its name the smallest")
          .field("straggler_wait_ms", &T::straggler_wait_ms, count_from(0) | unit("ms"),
                 "how long a batch waits for an older group")
          .field("inflight", &T::inflight, count_from(0) | unit("rollouts"),
                 "rollouts in flight; 0 is max_inflight of the rollout node")
          .field("share", &T::share, zero_or(above_up_to(0, 1)),
                 "share of engines and learner while other tenants need them too; 0 is an equal "
                 "share of what the others leave")
          .field("rollout_timeout", &T::rollout_timeout, above(0),
                 "from the start of a rollout to its reward")
          .field("environment_timeout", &T::environment_timeout, above(0),
                 "time limit of one call of the environment");
  return std::move(options)
      .table("sampling", &T::sampling, sampling_options(), "how tokens are sampled")
      .table("filters", &T::filters, filter_options(), "which groups train")
      .table("chat", &T::chat, chat_options(), "how conversations become token ids")
      .table("eval", &T::eval, eval_options(), "rollouts that measure the policy")
      .table("adapter", &T::adapter, adapter_options(),
             "a LoRA adapter that trains instead of all weights of the learner")
      .table("loss", &T::loss, loss_options(), "values of the loss that differ from the learner's")
      .table("advantage", &T::advantage, advantage_options(), "how rewards become advantages")
      .table("teacher", &T::teacher, teacher_options(),
             "a frozen model of the graph that the objective follows or stays near to")
      .table("optimizer", &T::optimizer, optimizer_options(),
             "values of the optimizer that differ from the learner's")
      .table("schedule", &T::schedule, schedule_options(),
             "values of the schedule that differ from the learner's")
      .table("curriculum", &T::curriculum, curriculum_options(),
             "which rows of the environment are given how often")
      .take();
}

}  // namespace

const OptionSet& tenant_options() {
  static const OptionSet options = make_tenant_options();
  return options;
}

const OptionSet& environment_options() {
  using E = TenantEnvironment;
  static const OptionSet options =
      OptionsOf<E>()
          .field("name", &E::name, refers_to("environment") | required(),
                 "which environment gives tasks and rewards")
          .take();
  return options;
}

const OptionSet& reward_options() {
  using R = TenantReward;
  static const OptionSet options =
      OptionsOf<R>()
          .field("name", &R::name, refers_to("reward") | required(),
                 "the reward that judges a finished trajectory; a reward is any finite number")
          .field("weight", &R::weight, between(-1e6, 1e6),
                 "the reward of a trajectory is the sum of all scores times their weights")
          .take();
  return options;
}

const OptionSet& model_options() {
  using M = ModelOptions;
  static const OptionSet options =
      OptionsOf<M>()
          .field("path", &M::path, at_least(1) | required(),
                 "a Hugging Face folder, relative to this file")
          .field(
              "impl", &M::impl, one_of({"auto", "native", "transformers"}),
              "who computes it. Engines and learners of a run are native; auto names transformers "
              "where only `score` and `generate` can compute the model")
          .field("strict", &M::strict, any(),
                 "keys of its config.json that are not known are an error instead of a warning")
          .field("served_as", &M::served_as, between(0, kServedNamesMax) | unit("names"),
                 "names under which clients of the gateway know it, besides the tenants that train "
                 "it: [\"Qwen/Qwen3-8B\"]")
          .take();
  return options;
}

const OptionSet& resource_options() {
  using R = ResourceOptions;
  static const OptionSet options =
      OptionsOf<R>()
          .field("kind", &R::kind, required(), "engine, learner, weight_channel, ...")
          .field("backend", &R::backend, any(),
                 "the implementation; if it is not written, torch (weight_channel: memory)")
          .field("model", &R::model, refers_to("model"),
                 "which [model.x]; if it is not written, the only one")
          .field("threads", &R::threads, between(0, 1024) | unit("threads"),
                 "compute threads; 0 shares the cores of its process among its compute resources")
          .take();
  return options;
}

const OptionSet& node_options() {
  using N = NodeOptions;
  static const OptionSet options =
      OptionsOf<N>()
          .field("actor", &N::actor, refers_to("actor") | required(), "the actor this node runs")
          .field("per_tenant", &N::per_tenant, any(), "one instance for each tenant")
          .field("replicas", &N::replicas, between(1, 1 << 16) | unit("instances"),
                 "instances of a node without a resource")
          .field("on_error", &N::on_error, one_of({"auto", "drop", "stop", "restart"}),
                 "reaction to a failed handler: drop its message, stop the run, or restart the "
                 "actor; auto: as the actor's contract says, else drop")
          .field("restarts_max", &N::restarts_max, between(0, 1 << 16) | unit("restarts"),
                 "restarts within restart_window before the run stops")
          .field("restart_window", &N::restart_window, above(0),
                 "time over which restarts_max counts")
          .take();
  return options;
}

const OptionSet& place_options() {
  using P = PlaceOptions;
  static const OptionSet options =
      OptionsOf<P>()
          .field("nodes", &P::nodes, at_least(1) | required(), "the nodes this process hosts")
          .field("device", &P::device, any(), "\"cpu\" or \"cuda:N\", for its compute resources")
          .field("devices", &P::devices, any(),
                 "one device for each replica, instead of `device`: [\"cuda:0\", \"cuda:1\"]")
          .field("replicas", &P::replicas, between(1, 1024) | unit("processes"),
                 "copies of the place, each a process with all its nodes and its own resources")
          .field("host", &P::host, any(),
                 "the machine it runs on; if it is not written, the machine where the run starts")
          .field("threads", &P::threads, between(0, 1024) | unit("threads"),
                 "compute threads that its resources share; 0 is its share of the cores")
          .field("cpus", &P::cpus, any(),
                 "the CPUs that its threads may use, \"0-3,8\", divided among its replicas; if it "
                 "is not written, all")
          .field("variables", &P::variables, any(),
                 "environment variables of its processes: [\"OMP_PROC_BIND=close\"]")
          .field("memory_max", &P::memory_max, at_least(0) | unit("bytes"),
                 "most memory of the engines and learners of each of its processes on the CPU; 0 "
                 "is memory_max of [graph]")
          .take();
  return options;
}

const OptionSet& edge_options() {
  using E = EdgeOptions;
  static const OptionSet options =
      OptionsOf<E>()
          .field("path", &E::path, at_least(1) | required(), "\"node.output -> node.input\"")
          .field("capacity", &E::capacity, between(0, 1 << 20) | unit("messages"),
                 "messages that may wait per source and target instance; then the edge is full")
          .field("bytes_max", &E::bytes_max, at_least(0) | unit("bytes"),
                 "Blob bytes that may wait per source and target instance")
          .field("record", &E::record, one_of({"auto", "none", "header", "input", "payload"}),
                 "what the trace keeps of its messages: nothing (none), size and checksum "
                 "(header), the handled message without large Blobs (input), or the sent message "
                 "(payload); auto: payload if the output is marked recorded, else input between "
                 "processes and header within one")
          .field("transport", &E::transport, one_of({"auto", "memory", "ipc", "tcp"}),
                 "how its messages are sent; auto: memory in a process, ipc between processes of a "
                 "machine, tcp between machines")
          .take();
  return options;
}

}  // namespace primerl
