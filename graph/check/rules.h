/// The rules of a graph, one function each. Each reports all that it finds and returns nothing.
/// Order: binding first (it fills the Draft), then rules that need several tables at once.
#pragma once

#include "graph/check/draft.h"

namespace primerl {

// Binding: tables to typed options (G02x), names to indices (G010-G018).
void bind_settings(Draft& draft);
/// After the settings: `[graph.tenant_limits]` and Draft::any_tenant.
void bind_limits(Draft& draft);
/// Keys that the tenant's table does not write get the limit, where that is smaller.
void apply_limits(const NamedTable& spec, Tenant& tenant, const Draft& draft);
void bind_trace(Draft& draft);
void bind_models(Draft& draft);
void bind_services(Draft& draft);
void bind_tenants(Draft& draft);
/// Keys of a tenant that only loops of the graph read; one with `client = true` has none of them.
std::vector<std::string> keys_of_loops();
/// The values of those keys, and `inflight`, of a tenant with `client = true`.
void fill_client(Tenant& tenant);
/// After its environments: G085, G090 (a warning); what the tenant has of all of them.
void fold_mix(DraftTenant& drafted, Draft& draft);
void bind_resources(Draft& draft);
void bind_nodes(Draft& draft);
void bind_places(Draft& draft);
void count_inflight(Draft& draft);      // after the nodes: Tenant::inflight_max
void count_rows(Draft& draft);          // after the nodes: G075; rows, tasks, groups of a Tenant
void check_curricula(Draft& draft);     // G085; rows of curricula
void name_objectives(Draft& draft);     // after the resources: Tenant::objective
void name_served_models(Draft& draft);  // after the nodes: Tenant::served_as
void share_out(Draft& draft);           // G063; Tenant::share where the file has none
void count_memory(Draft& draft);        // after the tenants: DraftResource::memory
void resolve_edges(Draft& draft);

// Tenants and models.
void check_tenant_limits(Draft& draft);       // G096
void check_limited_optimizers(Draft& draft);  // G085
void check_clients(Draft& draft);             // G085
void check_batches(Draft& draft);             // G061
void check_inflight(Draft& draft);            // G062
void check_sequence_lengths(Draft& draft);    // G064
void check_teachers(Draft& draft);            // G044, G083, G084
void check_tenants_exist(Draft& draft);       // G060, G065, G066
void check_message_sizes(Draft& draft);       // G069
void check_demands(Draft& draft);             // G083
void check_models(Draft& draft);              // G044, G095
void check_adapters(Draft& draft);            // G044
void check_served_names(Draft& draft);        // G017
void check_sequence_room(Draft& draft);       // G084
void check_stops(Draft& draft);               // G073
void check_drain(Draft& draft);               // G068 (a warning)
void check_recompute(Draft& draft);           // G089 (a warning)

// Before a run: what its processes on this machine will open and need (Overrides::for_run).
void check_tokenizers(Draft& draft);    // G044
void check_files(Draft& draft);         // G046
void check_setups(Draft& draft);        // G085
void check_machine_cpus(Draft& draft);  // G057

// Edges.
void check_connected(Draft& draft);           // G033
void check_servers_of_clients(Draft& draft);  // G085
void check_runs(Draft& draft);                // G076, G085
void check_fan_out(Draft& draft);             // G034, G054
void check_forward_cycles(Draft& draft);      // G036
void check_feedback(Draft& draft);            // G037
void check_edges_once(Draft& draft);          // G038
void check_recording(Draft& draft);           // G039 (a warning)

// Nodes and resources.
void check_nodes_exist(Draft& draft);      // G007
void check_single(Draft& draft);           // G070
void check_one_tenant(Draft& draft);       // G067
void check_restart(Draft& draft);          // G071
void check_resource_copies(Draft& draft);  // G041, G045, G055
void check_shared_learners(Draft& draft);  // G048
void check_adapter_slots(Draft& draft);    // G074 (a warning)
void check_idle_options(Draft& draft);     // G090 (a warning)
void check_training(Draft& draft);         // G085
void check_unused(Draft& draft);           // G043
void check_weights(Draft& draft);          // G087, G091 (a warning)
void check_threads(Draft& draft);          // G047 (a warning)
void check_memory(Draft& draft);           // G049, G090 (a warning)

// Places.
void check_places(Draft& draft);       // G050, G051
void check_devices(Draft& draft);      // G052, G053
void check_place_sizes(Draft& draft);  // G057
void check_transports(Draft& draft);   // G056
void check_handles(Draft& draft);      // G072

}  // namespace primerl
