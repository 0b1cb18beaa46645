#include "graph/check/codes.h"

#include <fmt/format.h>

namespace primerl {
namespace {

constexpr ErrorCode kCodes[] = {
    {"G001", "not TOML",
     "The text is not valid TOML, longer than 16 MiB, or more than 256 tables deep. The position "
     "is where reading stopped; the mistake is there or a little before, often a missing quote, "
     "bracket or comma."},
    {"G002", "written twice",
     "A key or a table header appears twice in one file. TOML has no rule for which one counts, so "
     "neither is used silently. Keep one. To change a value of another file, include that file: "
     "the values of the including file replace it."},
    {"G003", "file not readable",
     "The graph, an included file or an overlay does not exist, is a folder, or may not be read. "
     "Paths of `include` are relative to the file that includes. A name that begins with "
     "\"primerl:\" is a built-in graph: primerl:async_rl or primerl:sft."},
    {"G004", "include cycle",
     "Files include each other in a circle, or are nested more than 16 deep. Break the circle: "
     "move the tables that both need into a third file."},
    {"G005", "unreadable --set",
     "A `--set` flag is `path.to.key=value`, the value in TOML syntax; a bare word is taken as a "
     "string. Quote the whole flag for your shell when the value has spaces or brackets."},
    {"G006", "unknown table",
     "At the top level a graph file has include, [graph], [tenant.*], [model.*], [resource.*], "
     "[node.*], [edges], [place] and [trace], nothing else. Nothing is ignored silently. The file "
     "of a tenant that joins a running graph has include and one [tenant.*] alone: the other "
     "tables are those of the graph."},
    {"G007", "no nodes",
     "A graph with [edges] and without a single [node.*] table does nothing. Without [edges], the "
     "nodes of the standard loop are implied."},
    {"G008", "two built-in graphs",
     "`include` names two built-in graphs, such as \"primerl:async_rl\" and \"primerl:sft\". Each "
     "is a whole graph, so only one can complete a file."},
    {"G010", "unknown actor",
     "`actor` names a class that the program does not have. `primerl-graph actors` lists them with "
     "their ports and options."},
    {"G011", "unknown node",
     "An edge or a place names a node that has no [node.*] table in the file or in its includes. "
     "A file without [edges] has the nodes of a built-in loop: then [node.x] sets options of node "
     "x, and no other node can be added. "
     "If several places use this name, and a node that nothing names has a similar one, the "
     "table's name is misspelt and the error is reported there."},
    {"G012", "unknown port",
     "The actor of that node has no port of that name in that direction. `primerl-graph actors "
     "NAME` shows its ports with the messages they carry."},
    {"G013", "unknown resource",
     "An option of a node names a resource that has no [resource.*] table. As with nodes, the "
     "error is reported at the table if its name is misspelt."},
    {"G014", "unknown model",
     "A resource or a node names a model that has no [model.*] table. As with nodes, the error is "
     "reported at the table if its name is misspelt."},
    {"G015", "unknown environment or reward",
     "`environment = { name = ... }` of a tenant names an environment, or `reward = { name = ... "
     "}` a reward, that neither the program nor one of the graph's plugins has."},
    {"G016", "unknown resource kind or backend",
     "A resource has a `kind` (engine, learner, weight_channel, ...) and a `backend`, its "
     "implementation. This program has no such pair; it may have been built without it."},
    {"G017", "bad name",
     "Names of nodes, resources, tenants, models and places are lower_snake: they appear in file "
     "names, metrics and logs, where anything else would need quoting. The graph's own name "
     "becomes part of the run folder's name. A name in `served_as` of a model is what clients "
     "write: letters, digits and '/', '-', '_', '.', ':', at most 128 bytes. It belongs to one "
     "model and is no tenant's name. The name of a tenant that joins a running graph must be free "
     "there."},
    {"G018", "ambiguous or missing reference",
     "A reference that is left out means the only one of its kind. Here there is none, or there "
     "are several: write the name of one."},
    {"G019", "unknown name in a flag",
     "A `--set` flag, or an option that names a tenant, names a tenant, model, resource, node or "
     "place that the graph does not have. A flag changes existing tables; new tables come from the "
     "file or an overlay."},
    {"G020", "unknown key",
     "The table has no such option. Nothing is ignored silently: otherwise a run with a misspelt "
     "option would use the default. If the name is similar to an option that the table lacks, the "
     "check continues with that option, so that one mistake gives one error."},
    {"G021", "wrong type",
     "The value is of another type than the option: a string where a number belongs, a table where "
     "a list belongs. A whole number is valid for an option of type number, but not the reverse."},
    {"G022", "missing or unknown unit",
     "Durations are strings with a unit, \"250ms\", \"30s\", \"5m\" or \"2h\": without a unit, a "
     "number could mean seconds or milliseconds. Sizes are a whole number of bytes, or a string "
     "with a unit: \"512MiB\" and \"2GiB\" are powers of 1024, \"1.5GB\" is of 1000."},
    {"G023", "out of range",
     "The value is of the right type but outside the option's limits, which the note states. The "
     "option is tested at these limits."},
    {"G024", "no such choice",
     "The option must be one of a fixed set of words, which the note lists."},
    {"G025", "required key missing",
     "The table cannot be used without this option, and none of its keys is similar to it."},
    {"G030", "malformed edge",
     "An edge is the string \"node.output -> node.input\", or a table with that string as `path`, "
     "together with `capacity`, `bytes_max` or `record`."},
    {"G031", "wrong direction",
     "Messages flow from an output to an input. The port exists, but in the other direction: swap "
     "the ends of the edge or use another port."},
    {"G032", "message types differ",
     "An edge joins ports of one message type. The note names the inputs that would fit."},
    {"G033", "required port unconnected",
     "The actor cannot do its work without this port. Ports that may stay unconnected are declared "
     "optional in the actor's contract."},
    {"G034", "fan-out without routing",
     "An output that sends to one instance has several possible targets: more than one edge, or an "
     "edge to a node with replicas. Only a contract can declare how one is selected: broadcast, "
     "addressed, keyed or to_origin."},
    {"G035", "no capacity",
     "An edge with space for no message, or for no byte of a Blob, is full from the start: its "
     "sender would wait for ever."},
    {"G036", "forward cycle",
     "A full forward edge stops its sender. In a cycle every node could wait for the next one for "
     "ever. Loops need a feedback edge: it never stops its sender, and its number of messages has "
     "a stated bound."},
    {"G037", "feedback without a number",
     "A feedback edge never stops its sender, so a contract must state how many messages it can "
     "have: `at_most(...)` of either port, or `latest_wins()` of the input. Otherwise memory would "
     "have no bound."},
    {"G038", "edge written twice",
     "The same output is connected to the same input twice; every message would arrive twice."},
    {"G039", "needed payloads are not recorded",
     "A warning. The output is marked recorded: its messages cannot be computed again cheaply, or "
     "at all (an environment, an engine or a learner made them). `record` of this edge keeps their "
     "payloads out of the trace. The run itself is not affected. The receiver cannot be replayed "
     "alone; with \"none\", a replay of the whole graph does not detect a message that differs."},
    {"G040", "resource of the wrong kind",
     "The option names a resource of another kind than it needs, e.g. an engine where a learner is "
     "needed."},
    {"G041", "one copy only",
     "Every process has its own copy of a resource. Of this kind only one copy makes sense: two "
     "learners would train two different models. Put all its users in one place."},
    {"G042", "reads no model",
     "A warning. This backend loads no model folder (a scripted one generates random answers), so "
     "`model` has no effect. The key may stay, so that one file runs with either backend."},
    {"G043", "unused table",
     "Nothing names this resource or model. Usually the name is misspelt somewhere else; if not, "
     "remove the table."},
    {"G044", "model not usable",
     "The model's folder is missing, is not a folder, or its model cannot be computed: its "
     "config.json cannot be read or asks for what is not computed, there are no weights, or a "
     "tensor is "
     "missing, unknown or of another shape. Weights may be missing if all resources that compute "
     "with them are on other machines, or if a learner has an `init_seed`. `primerl-graph model "
     "DIR` shows the contents of a folder. `path` is relative to the file it is written in; in a "
     "`--set` flag, to the folder you are in. The same holds for the `path` of a tenant's adapter, "
     "whose rank, scaling and targets must equal those of the tenant, and whose numbers must be "
     "finite. If a node needs the tokenizer of a folder, `check` and `run` also read it: its "
     "largest id and its end ids need a row in the embedding of the models that compute here."},
    {"G045", "replicas share a resource",
     "A resource belongs to one thread, so a node that uses an engine or learner cannot be "
     "replicated by itself."},
    {"G046", "file not usable",
     "An option names a file or folder that does not exist or is something else, or a file without "
     "the format that the node needs: the message then has the line of that file. The name is "
     "relative to the graph file that has it; in a `--set` flag, to the folder you are in."},
    {"G047", "more threads than cores",
     "A warning. Compute pools that share cores slow each other down much more than in proportion: "
     "two pools of 2 threads on 2 cores were measured 14 times slower. Leave `threads` out and the "
     "cores are shared evenly."},
    {"G048", "tenants share the weights of a learner",
     "A learner has one copy of the weights of its model. Several tenants can share it if each "
     "trains an adapter, `[tenant.<name>.adapter]`. A tenant that trains all weights must be the "
     "only one in its graph."},
    {"G049", "more memory than there is",
     "A process on the CPU needs more memory at its peak than `memory_max`, of [graph] or of its "
     "place, allows. Or all processes here need more than this machine has: the smallest of its "
     "RAM and the limits of its control group and the groups above it (memory.max, "
     "memory.limit_in_bytes). The sum includes: the weights, once for all resources that train or "
     "serve adapters on them, else in each engine and learner; gradients and optimizer moments; KV "
     "blocks; adapter slots and the other adapters in memory; activations and logits of an "
     "engine's step and of a micro-batch; the versions of the weights that the channel keeps; the "
     "program and libtorch. The error lists the largest parts; `primerl-graph show GRAPH --plan` "
     "lists all. An engine's second set of weights is left out if memory is short: its steps then "
     "wait while a new version is applied."},
    {"G050", "placed twice", "A node can be in only one place. Remove it from the other one."},
    {"G051", "not placed",
     "With a [place] table every node must be in one of its places. Without the table all nodes "
     "run in one process."},
    {"G052", "unknown device", "A device is \"cpu\" or \"cuda:N\", N from 0."},
    {"G053", "device without use",
     "No node of the place uses a resource that computes, so the device would stay idle; it was "
     "probably meant for another place."},
    {"G054", "an edge into replicas without a choice",
     "A place with replicas has every node once per replica. An edge from outside must select the "
     "replica for each message, and only the contract of its output can do that: addressed, keyed, "
     "broadcast or to_origin. An edge inside the place stays inside its replica."},
    {"G055", "channel cannot connect its users",
     "The backends of a weight channel: memory connects nodes of one process, shm processes of one "
     "machine, files processes that share a disk, stream any processes of the run."},
    {"G056", "transport does not fit",
     "Messages use memory inside a process, ipc (or tcp, if the file says so) between processes of "
     "one machine, and tcp between machines. Two processes have one connection, so all edges "
     "between two places use the same transport."},
    {"G057", "invalid place",
     "`devices` has one device for each replica, `cpus` is a list like \"0-3,8\" with at least one "
     "CPU for each replica, which processes that start here may use, `variables` are "
     "\"NAME=value\", and `host` is a machine's name or address."},
    {"G058", "devices that cannot be combined",
     "The replicas of a place are copies of one engine with the same options. `devices` puts each "
     "on a device of its own: all on CUDA devices, each named once, or all on the CPU. To put "
     "several on one device, write `device`, which is for all replicas."},
    {"G060", "no tenant",
     "A per_tenant node has one instance for each [tenant.*] table, and there is none."},
    {"G061", "batch is not a whole number of groups",
     "A training step uses whole groups, because advantages compare the rollouts of one group: "
     "batch_size must be a multiple of group_size."},
    {"G062", "a group does not fit in flight",
     "A group starts only when all its rollouts may be in flight, so with max_inflight smaller "
     "than "
     "group_size no group would ever start."},
    {"G063", "shares above 1 in sum",
     "A tenant's share is its part of engines and learner while other tenants need them too. The "
     "shares of all tenants are at most 1 in sum. Tenants without a share divide the rest, so the "
     "rest must be above 0."},
    {"G064", "longer than the model",
     "seq_len is the longest trajectory in tokens, and the model has fewer positions. If seq_len "
     "is left out, it is the smaller of 2048 and the model's limit."},
    {"G065", "more tenants than allowed",
     "tenants_max is the most tenants that the graph may have, with those of other files and "
     "`--set`. Raise it, or leave it out: then their number is not limited."},
    {"G066", "tenant without environment",
     "A tenant's tasks and rewards come from its environment; `environment = { name = ... }` names "
     "it."},
    {"G067", "tenants share an instance",
     "An instance of this actor serves one tenant, and the graph has several. With per_tenant = "
     "true the node has an instance for each; a trainer would also need a learner for each "
     "(G048)."},
    {"G068", "a drain shorter than an environment call",
     "A warning. At its end a run waits for running environment calls, and abandons a call after "
     "environment_timeout. If drain_max is not longer than that, a call that hangs when the drain "
     "begins is not abandoned in time, and the run ends as failed."},
    {"G069", "a group too large for a message",
     "All rollouts of a group are sent to the trainer in one message. Its body has at most 1 MiB; "
     "token arrays longer than 1 KiB are stored beside it and do not count, so seq_len alone has "
     "no limit here. The size is about group_size times 3 KiB, and 32 bytes for each turn and "
     "policy version of a rollout. The suggestion names the largest values that fit."},
    {"G070", "only one of this actor",
     "The actor is declared single(): a second one (per tenant) would conflict with the first, "
     "e.g. two trainers that make the same versions."},
    {"G071", "not restartable",
     "on_error = \"restart\" creates the actor again and restores its state. This actor has state "
     "that it cannot save, so a restart would lose it silently."},
    {"G072", "a handle would leave its engine",
     "Prefill leaves a prompt's KV in its engine and sends decode a handle to it. Only users of "
     "the same copy of that engine can take it over: both nodes must name one engine and be in one "
     "place. (Each place has its own copy of an engine, and no channel moves KV between engines "
     "yet.) For several engines, set `replicas` of the place that has both nodes: each replica has "
     "its own pair."},
    {"G073", "nothing to stop at",
     "`sampling.stop` is a list of texts of 1 to 256 bytes, at most 16; `sampling.stop_ids` a list "
     "of token ids, at most 64. An empty text would end every turn at its first token."},
    {"G074", "adapter slots that are never used",
     "A warning. An engine computes with the adapters in its adapter_slots, and a tenant has at "
     "most one adapter. There are never more slots than tenants with [tenant.<name>.adapter], even "
     "if adapter_slots is larger. The key may stay, so that one file also runs with more tenants; "
     "if it is left out, there is a slot for each adapter."},
    {"G075", "an evaluation or an epoch without rows",
     "`epochs` counts passes over the rows of a data set, and `eval` plays given rows. Other "
     "environments make as many tasks as are asked for, so their evaluations need `rows`, and "
     "`epochs` has no meaning. All rollouts of a row start together, so `eval.samples` must fit "
     "into max_inflight; and `epochs` must give the tasks of at least one batch."},
    {"G076", "rollouts without a gateway",
     "The environment of a tenant plays its rollouts itself: its server calls the policy over "
     "HTTP. "
     "For that the graph needs a node of the actor `gateway` with a listener, and edges that carry "
     "the runs, their turns and their ends. They are implied where the file has no [edges]; a file "
     "with [edges] writes them."},
    {"G078", "longer than an engine or a learner accepts",
     "seq_len is the longest trajectory in tokens, and an engine or a learner of the graph accepts "
     "at most max_sequence_tokens. If seq_len is left out, it is the largest length that all of "
     "them accept."},
    {"G080", "the graph makes no progress",
     "`check` and `run` rehearse a graph: its own actors run on a virtual clock, with a scripted "
     "engine, learner and environment, until every tenant has made three steps. Here they wait for "
     "each other instead. The table shows what waits at which node. If adding one edge lets the "
     "rehearsal make its steps, the help names that edge. `--no-rehearsal` skips the rehearsal."},
    {"G081", "the rehearsal fails",
     "The graph's own actors ran on a virtual clock with scripted resources, and this rehearsal "
     "ended with the error shown: the run would end in the same way. `--no-rehearsal` skips the "
     "rehearsal."},
    {"G082", "the rehearsal has problems",
     "A warning. The graph's own actors ran on a virtual clock with scripted resources, where no "
     "fault should occur. They made their steps, but a node logged the quoted problem."},
    {"G083", "the tenant's value does not suit the node",
     "The value is within the option's range, but the named node cannot train with it: a policy "
     "gradient compares the rollouts of a group, so it needs at least two of them, and they must "
     "be sampled, not greedy."},
    {"G084", "no sequence fits",
     "The engine accepts a prompt only if prompt and max_tokens fit into one sequence: into its KV "
     "blocks, its max_sequence_tokens and the model's positions. Here even a prompt of one token "
     "would not fit, so every request would be refused."},
    {"G085", "options that cannot be combined",
     "Each value is within its option's range, but no environment or resource can have all of them "
     "together: for example a shortest length above the longest, an alphabet without letters, "
     "bfloat16 on the CPU, more `max_sequence_tokens` than the model has positions. The run would "
     "end with this error at its start."},
    {"G086", "no task fits the tenant",
     "`check` made some tasks of the tenant's environment, and none of them can be solved: the "
     "prompt has no token, or it fills seq_len so that nothing can be sampled after it, or a "
     "perfect answer needs more turns than turns_max. Every group would end without training. Each "
     "row of a data set is checked too: a prompt must leave a token to sample, and a supervised "
     "row "
     "has at most seq_len tokens. The finding names the file, the line and the number of tokens. "
     "An environment with tools needs a model with a chat template, which writes them into the "
     "prompt. "
     "`--no-rehearsal` skips this check."},
    {"G087", "weights that do not fit",
     "A learner and an engine that share a weight channel must have tensors of the same names and "
     "shapes: either both are scripted, or both use models whose config.json has the same numbers. "
     "Otherwise the engine would refuse the first version, and no group would ever open. If a "
     "tenant trains an adapter, only the adapter is sent, and both must name the same model."},
    {"G088", "a plugin that cannot be used",
     "`[graph] plugins` lists shared libraries with actors, environments, rewards and your own "
     "routing policies. This one is missing, is not a plugin, was built against another version of "
     "primerl-graph or with another compiler, or has a name that exists already. Build it again "
     "against the installed headers. The rest of the graph is not checked, because its valid names "
     "are not known."},
    {"G089", "a crash would lose much training",
     "A warning. After a crash, a run resumes from its newest checkpoint and repeats every later "
     "training step: here that may be more than a thousand. Without checkpoints before its end no "
     "state is saved at all, and if the record is larger than trace.bytes_max, the run cannot be "
     "resumed from it."},
    {"G090", "an option without effect",
     "A warning. The option is valid, but it changes nothing here: it is for another device, for "
     "adapters that no tenant trains, or it belongs to another option that is not set. The text "
     "says which. The key may stay, so that one file also runs on another device or with more "
     "tenants."},
    {"G091", "engine and learner with different numbers",
     "A warning. The engine that samples and the learner that trains have different 'products', "
     "for example FP8 on one side only. That is valid, and saves memory or time on that side. But "
     "the learner then gives the sampled tokens other probabilities than the engine: mismatch_kl "
     "is above 0 from the first step on, and importance weights carry that difference. Equal "
     "values on both sides avoid it."},
    {"G095", "a model folder with doubts",
     "A warning. config.json has keys that this version does not know; the model is computed "
     "without them, as transformers does with keys that its class does not read. `strict = true` "
     "in `[model.x]` refuses them. Or the weights have tensors that are not used, such as tables "
     "of "
     "angles that older programs saved. Or tokenizer_config.json and the model name different ends "
     "of a sequence, and the turns of a supervised graph end with the model's."},
    {"G096", "beyond the graph's limits",
     "A tenant needs more than `[graph.tenant_limits]` allows: a longer trajectory, a larger group "
     "or batch, more rollouts at once, another adapter, optimizer, environment or reward, or a "
     "file outside `data_root`; or it is trained by a client, and `clients` is not true. The "
     "graph's bounds, links and memory were planned for tenants within the limits, so that one may "
     "join while others train. Write a smaller value, or start the graph with higher limits."},
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
      "# Findings of the checker\n\nEvery finding of `primerl-graph check` has a stable code; "
      "`primerl-graph explain G012` prints its paragraph. This page is generated from "
      "`graph/check/codes.cc`; each code has an example under `tests/graph/golden/`.\n";
  for (const auto& code : kCodes)
    text += fmt::format("\n## {}: {}\n\n{}\n", code.code, code.title, code.text);
  return text;
}

}  // namespace primerl
