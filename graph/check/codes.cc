#include "graph/check/codes.h"

#include <fmt/format.h>

namespace primerl {
namespace {

constexpr ErrorCode kCodes[] = {
    {"G001", "no TOML",
     "The text is not valid TOML, longer than 16 MiB, or more than 256 tables deep. The place is "
     "where "
     "reading stopped; the "
     "slip is there or a little before it, often a missing quote, bracket or comma."},
    {"G002", "written twice",
     "A key or a table header stands twice in one file. TOML has no rule for which one counts, so "
     "neither is taken silently. Keep one. To change a value of another file, include that file: "
     "the including file wins."},
    {"G003", "file not readable",
     "The graph, an included file or an overlay does not exist, is a folder, or may not be read. "
     "Paths of `include` are relative to the file that includes."},
    {"G004", "include cycle",
     "Files include each other in a circle, or are nested more than 16 deep. Break the circle: put "
     "what both need in a third file."},
    {"G005", "unreadable --set",
     "A `--set` flag is `path.to.key=value`, the value in TOML syntax; a bare word is taken as a "
     "string. Quote the whole flag for your shell when the value has spaces or brackets."},
    {"G006", "unknown table",
     "At the top level a graph file has include, [graph], [tenant.*], [model.*], [resource.*], "
     "[node.*], [edges], [place] and [trace], nothing else. Nothing is ignored silently."},
    {"G007", "no nodes",
     "A graph without a single [node.*] table does nothing. `primerl-graph init` writes one that "
     "runs."},
    {"G010", "unknown actor",
     "`actor` names a class that the program does not have. `primerl-graph actors` lists them with "
     "their ports and options."},
    {"G011", "unknown node",
     "An edge or a place names a node that has no [node.*] table in the file or in what it "
     "includes. Where several places name it and a node that nothing names is called almost the "
     "same, the slip is in the table's name, and the error stands there."},
    {"G012", "unknown port",
     "The actor of that node has no port of that name in that direction. `primerl-graph actors "
     "NAME` shows its ports with the messages they carry."},
    {"G013", "unknown resource",
     "An option of a node names a resource that has no [resource.*] table. As with nodes, the "
     "error is reported at the table where that is what is misspelt."},
    {"G014", "unknown model",
     "A resource or a node names a model that has no [model.*] table. As with nodes, the error "
     "is reported at the table where that is what is misspelt."},
    {"G015", "unknown environment or reward",
     "`environment = { name = ... }` of a tenant names an environment, or `reward = { name = ... "
     "}` a reward, that neither the program nor one of the graph's plugins has."},
    {"G016", "unknown resource kind or backend",
     "A resource has a `kind` (engine, learner, weight_channel, ...) and a `backend`, who does the "
     "work. This program has no such pair; it may have been built without it."},
    {"G017", "bad name",
     "Names of nodes, resources, tenants, models and places are lower_snake: they appear in file "
     "names, metrics and logs, where anything else would need quoting. The graph's own name "
     "becomes "
     "part of the run folder's name."},
    {"G018", "ambiguous or missing reference",
     "A reference that is left out means the only one of its kind. Here there is none, or there "
     "are "
     "several: name one."},
    {"G019", "unknown name in a flag",
     "A `--set` flag, or an option that names a tenant, speaks of a tenant, model, resource, node "
     "or place that the graph does not have. A flag changes what is there; new tables come from "
     "the "
     "file or an overlay."},
    {"G020", "unknown key",
     "The table has no such option. Nothing is ignored silently, because a slip in an option's "
     "name would otherwise run with the default. Where the name is near to an option that is "
     "missing, the check goes on with that one, so that one slip is one error."},
    {"G021", "wrong type",
     "The value is of another type than the option: a string where a number belongs, a table where "
     "a list belongs. A whole number is fine where a number is asked for; the reverse is not."},
    {"G022", "missing or unknown unit",
     "Durations are strings with a unit, \"250ms\", \"30s\", \"5m\" or \"2h\": a bare number does "
     "not "
     "say whether it counts seconds or milliseconds. Sizes are a whole number of bytes, or a "
     "string "
     "with a unit: \"512MiB\" and \"2GiB\" are powers of 1024, \"1.5GB\" is of 1000."},
    {"G023", "out of range",
     "The value is of the right type but outside the option's limits, which the note states. The "
     "limits are those the option is tested at."},
    {"G024", "no such choice",
     "The option takes one of a fixed set of words, which the note lists."},
    {"G025", "required key missing",
     "The table cannot be used without this option, and none of its keys looks like it."},
    {"G030", "malformed edge",
     "An edge is the string \"node.output -> node.input\", or a table with that string as `path` "
     "and "
     "`capacity`, `bytes_max` or `record` beside it."},
    {"G031", "wrong direction",
     "Messages flow from an output to an input. The port exists, but in the other direction: turn "
     "the edge round or choose another port."},
    {"G032", "message types differ",
     "An edge joins ports of one message type. The note names the inputs that would fit."},
    {"G033", "required port unconnected",
     "The actor cannot do its work without this port. Ports that may stay open are declared "
     "optional in the actor's contract."},
    {"G034", "fan-out without routing",
     "An output that sends to one instance has several to choose from: more than one edge, or an "
     "edge to a node with replicas. Only a contract can say how to choose: broadcast, addressed, "
     "keyed or to_origin."},
    {"G035", "no capacity",
     "An edge with room for no message, or no byte of a Blob, is full from the start: its sender "
     "would wait for ever."},
    {"G036", "forward cycle",
     "Forward edges hold their sender back when full. In a cycle every node could wait for the "
     "next, for ever. Loops close over feedback edges, which are never held back and carry a "
     "stated "
     "number of messages instead."},
    {"G037", "feedback without a number",
     "A feedback edge is never held back, so a contract must say how many messages it can hold: "
     "`at_most(...)` of either port, or `latest_wins()` of the input. Without it memory would have "
     "no bound."},
    {"G038", "edge written twice",
     "The same output is joined to the same input twice; every message would arrive twice."},
    {"G039", "needed payloads are not recorded",
     "A warning. The output is marked recorded: its messages cannot be computed again cheaply, or "
     "at all (an environment, an engine or a learner made them). `record` of this edge keeps their "
     "payloads out of the trace. The run itself is not affected. What receives them cannot be "
     "replayed by itself; "
     "with \"none\" a replay of the whole graph does not even notice a message that differs."},
    {"G040", "resource of the wrong kind",
     "The option wants another kind of resource than the one it names, e.g. an engine where a "
     "learner is needed."},
    {"G041", "one copy only",
     "Every process has its own copy of a resource. Of this kind only one copy makes sense: two "
     "learners would train two different models. Put all its users in one place."},
    {"G042", "reads no model",
     "A warning. This backend loads no model folder (a scripted one makes its answers up), so "
     "`model` changes nothing. The line may stay, so that one file runs with either backend."},
    {"G043", "unused table",
     "Nothing names this resource or model. It is almost always a slip in the name somewhere else; "
     "if not, take the table out."},
    {"G044", "model not usable",
     "The model's folder is missing, is no folder, or cannot be computed: its config.json cannot "
     "be read or has a field that is not understood, there are no weights, or a tensor is missing, "
     "unknown or of another shape. Weights may be missing where all that compute with them are on "
     "other machines, and where a learner has an `init_seed`. `primerl-graph model DIR` says what "
     "a folder holds. `path` is relative to the file it "
     "is written in; in a `--set` flag, to the folder you are in. The same holds for the `path` of "
     "a tenant's adapter, whose rank, scaling and targets are those that the tenant writes, and "
     "whose numbers are finite. `check` and `run` also read the tokenizer of a folder where a node "
     "needs it: its largest id and its end ids need a row in the embedding of the models that "
     "compute here."},
    {"G045", "replicas share a resource",
     "A resource belongs to one thread, so a node that uses an engine or learner cannot be "
     "replicated by itself."},
    {"G046", "file not usable",
     "An option of a node names a file that does not exist, is no file, or cannot be read as what "
     "the node needs: the message then has the line of that file. The name is relative to "
     "the file it is written in; in a `--set` flag, to the folder you are in."},
    {"G047", "more threads than cores",
     "A warning. Compute pools that share cores slow each other down far more than in proportion: "
     "two pools of 2 threads on 2 cores were measured 14 times slower. Leave `threads` out and the "
     "cores are shared evenly."},
    {"G048", "tenants share the weights of a learner",
     "A learner has the weights of its model once. Several tenants share it where each trains an "
     "adapter, `[tenant.<name>.adapter]`; a tenant that trains the whole weights is alone in its "
     "graph."},
    {"G049", "more memory than there is",
     "A process on the CPU needs more memory at its peak than `memory_max`, of [graph] or of its "
     "place, allows. Or all processes here need more than this machine has: the smallest of its "
     "RAM and the limits of its control group and the groups above it (memory.max, "
     "memory.limit_in_bytes). Counted are the weights, once for all that train adapters on them "
     "or serve those, else in each engine and learner; gradients and optimizer moments; KV "
     "blocks; the slots of adapters and the adapters beside them; activations and logits of an "
     "engine's step and of a micro-batch; the versions of the weights that the channel keeps; the "
     "program and libtorch. The largest parts are named, `primerl-graph show GRAPH --plan` lists "
     "all. An engine's second set of weights is left out where the memory is not enough: taking a "
     "new version then holds its steps up."},
    {"G050", "placed twice", "A node runs in one process. Take it out of one of the places."},
    {"G051", "not placed",
     "With a [place] table every node is in one of its places. Without the table all nodes run in "
     "one process."},
    {"G052", "unknown device", "A device is \"cpu\" or \"cuda:N\", N from 0."},
    {"G053", "device without use",
     "No node of the place uses a resource that computes, so the device would stay idle; probably "
     "it belongs to another place."},
    {"G054", "an edge into replicas without a choice",
     "A place with replicas has every node once per replica. An edge from outside must say which "
     "one a message is for, and only the contract of its output can: addressed, keyed, broadcast "
     "or to_origin. An edge inside the place needs no choice, since it stays inside the replica."},
    {"G055", "channel does not reach",
     "A weight channel by memory joins nodes of one process, by shm processes of one machine, by "
     "files processes that share a disk, by stream any processes of the run."},
    {"G056", "transport does not fit",
     "Messages travel by memory inside a process, by ipc (or tcp, where asked for) between "
     "processes of one machine, by tcp between machines. Two processes have one connection, so all "
     "edges "
     "between two places travel alike."},
    {"G057", "a place that cannot be made",
     "`devices` has one device for each replica, `cpus` is a list like \"0-3,8\" with a CPU for "
     "each replica at least, which processes started here may use, `variables` are \"NAME=value\", "
     "and `host` is a machine's name or "
     "address."},
    {"G058", "devices that do not go together",
     "The replicas of a place are copies of one engine with the same options. `devices` puts each "
     "on a device of its own: all on CUDA devices, each named once, or all on the CPU. Several on "
     "one device are written `device`, which is for all of them."},
    {"G060", "no tenant",
     "A per_tenant node has one instance for each [tenant.*] table, and there is none."},
    {"G061", "batch is no whole number of groups",
     "A training step takes whole groups, because advantages compare the rollouts of one group: "
     "batch_size must be a multiple of group_size."},
    {"G062", "a group does not fit in flight",
     "A group starts only when all its rollouts may be in flight, so with max_inflight smaller "
     "than "
     "group_size no group would ever start."},
    {"G063", "more is promised than there is",
     "A tenant's share is its part of engines and learner while others want them too. The shares "
     "of all tenants are 1 together at most, and tenants without one divide what is left, so that "
     "must be more than nothing."},
    {"G064", "longer than the model",
     "seq_len is the longest trajectory in tokens, and the model's positions end before that. Left "
     "out, seq_len is the smaller of 2048 and the model's limit."},
    {"G065", "more tenants than slots",
     "tenants_max is the number of slots made at the start. Raise it, or leave it out: then there "
     "are as many as tenants."},
    {"G066", "tenant without environment",
     "A tenant's tasks and rewards come from its environment; `environment = { name = ... }` names "
     "it."},
    {"G067", "tenants share an instance",
     "An instance of this actor serves one tenant, and the graph has several. With per_tenant = "
     "true the node has an instance for each; a trainer would also need a learner for each "
     "(G048)."},
    {"G068", "a drain shorter than an environment call",
     "A warning. At its end a run waits for the calls that are out, and gives one up after "
     "environment_timeout. With drain_max no longer than that, a call that hangs when the drain "
     "begins outlasts it, and the run ends as failed instead of giving the call up."},
    {"G069", "a group too large for a message",
     "All rollouts of a group travel to the trainer in one message. Its body has at most 1 MiB; "
     "token arrays longer than 1 KiB lie beside it and do not count, so seq_len alone has no limit "
     "here. What counts is group_size times about 3 KiB, and 32 bytes for each turn and policy "
     "version of a rollout. The suggestion names the largest values that fit."},
    {"G070", "only one of this actor",
     "The actor is declared single(): a second one (per tenant) would contradict the first, e.g. "
     "two "
     "trainers making the same versions."},
    {"G071", "not restartable",
     "on_error = \"restart\" makes the actor anew and gives its state back. This actor has state "
     "and "
     "no way to save it, so a restart would lose it silently."},
    {"G072", "a handle would leave its engine",
     "Prefill leaves a prompt's KV in its engine and tells decode a handle to it. Only users of "
     "the same copy of that engine can take it over: both nodes name one engine, and are in one "
     "place. (Two places have two copies of what both use, and no channel carries KV between "
     "engines yet.) To have several engines, give the place that holds both nodes `replicas`: "
     "every replica is a pair of its own."},
    {"G073", "nothing to stop at",
     "`sampling.stop` is a list of texts of 1 to 256 bytes, at most 16; `sampling.stop_ids` a list "
     "of token ids, at most 64. An empty text would end every turn at its first token."},
    {"G074", "slots that no adapter fills",
     "A warning. An engine computes with the adapters that lie in its adapter_slots, and a tenant "
     "has one adapter at most: there are no more slots than tenants with [tenant.<name>.adapter], "
     "and none where nobody has one, whatever is written. The line may stay, so that one file runs "
     "with more tenants, too; left out, there is a slot for each adapter."},
    {"G078", "longer than an engine or a learner takes",
     "seq_len is the longest trajectory in tokens, and an engine or a learner of the graph takes "
     "at most max_sequence_tokens. Left out, seq_len is what all of them take."},
    {"G080", "the graph makes no progress",
     "Before a run, and by `check`, the graph's own actors are played on a virtual clock, with a "
     "scripted engine, learner and environment, until every tenant has taken three steps. Here "
     "they "
     "wait for each other instead. The table says what waits at which node; the help names an edge "
     "with which the steps were taken, where one was found. `--no-rehearsal` leaves the playing "
     "out."},
    {"G081", "the rehearsal fails",
     "The graph's own actors were played on a virtual clock with scripted resources, and the play "
     "ended with this error: the run would end so, too. `--no-rehearsal` leaves the playing out."},
    {"G082", "the rehearsal goes on with trouble",
     "A warning. The graph's own actors were played on a virtual clock with scripted resources, "
     "where nothing should go wrong. They took their steps, but a node complained as quoted."},
    {"G083", "the tenant's value does not suit the node",
     "The value is within the option's range, but the named node cannot train with it: a policy "
     "gradient compares the rollouts of a group, so it needs two of them at least, and they must "
     "be "
     "drawn, not greedy."},
    {"G084", "no sequence fits",
     "The engine takes a prompt only when prompt and max_tokens fit into one sequence: into its "
     "blocks of KV memory, its max_sequence_tokens and the model's positions. Here not even a "
     "prompt "
     "of one token would fit, so every request would be refused."},
    {"G085", "options that do not go together",
     "Each value is within its option's range, but an environment or a resource cannot be made of "
     "all of them: a shortest length above the longest, an alphabet without letters, bfloat16 on "
     "the CPU, more `max_sequence_tokens` than the model has positions. The run would end with "
     "this "
     "error as it starts."},
    {"G086", "no task fits the tenant",
     "Some tasks of the tenant's environment were drawn, and not one of them can be solved: the "
     "prompt has no token or fills seq_len, so that nothing can be sampled after it, or a perfect "
     "answer takes more turns than turns_max. Every group would end without being trained on. "
     "`--no-rehearsal` leaves the drawing out."},
    {"G087", "weights that do not fit",
     "A learner and an engine that share a weight channel must have tensors of the same names and "
     "shapes: both scripted, or both of models whose config.json states the same numbers. Any "
     "other engine would refuse the first version, and no group would ever open. Where a tenant "
     "trains an adapter, only the adapter travels: both must name the same model."},
    {"G088", "a plugin that cannot be used",
     "`[graph] plugins` lists shared libraries with actors, environments, rewards and routing "
     "policies of one's own. This one is missing, is no plugin, was built against another version "
     "of primerl-graph or with another compiler, or brings a name that is taken. Build it again "
     "against the installed headers. The rest of the graph is not checked, because what it names "
     "is not known."},
    {"G089", "much training is lost with a crash",
     "A warning. A run that was cut off goes on from its newest checkpoint and takes every later "
     "training step again: here that may be more than a thousand. Without checkpoints before its "
     "end no state is saved at all, and when the record is larger than trace.bytes_max, the run "
     "cannot be resumed from it."},
};

/// Broken into lines of at most 80 columns, for a terminal.
std::string wrapped(std::string_view text) {
  constexpr size_t kColumns = 80;
  std::string lines;
  while (text.size() > kColumns) {
    const size_t space = text.rfind(' ', kColumns);
    lines += std::string(text.substr(0, space)) + "\n";
    text.remove_prefix(space + 1);
  }
  return lines + std::string(text) + "\n";
}

}  // namespace

std::span<const ErrorCode> error_codes() { return kCodes; }

const ErrorCode* find_error_code(std::string_view code) {
  std::string wanted(code);
  if (!wanted.empty() && wanted[0] == 'g') wanted[0] = 'G';
  if (!wanted.empty() && wanted[0] >= '0' && wanted[0] <= '9')
    wanted = "G" + std::string(wanted.size() < 3 ? 3 - wanted.size() : 0, '0') + wanted;
  for (const auto& known : kCodes)
    if (known.code == wanted) return &known;
  return nullptr;
}

std::string explain(const ErrorCode& code) {
  return fmt::format("{}: {}\n\n{}", code.code, code.title, wrapped(code.text));
}

std::string errors_markdown() {
  std::string text =
      "# What the checker can say\n\n"
      "Every finding of `primerl-graph check` has a stable code; `primerl-graph explain G012` "
      "prints "
      "its paragraph. This page is generated from `graph/check/codes.cc`; each code has an example "
      "under `tests/graph/golden/`.\n";
  for (const auto& code : kCodes)
    text += fmt::format("\n## {}: {}\n\n{}\n", code.code, code.title, code.text);
  return text;
}

}  // namespace primerl
