#include "graph/check.h"

#include "graph/check/rules.h"

namespace primerl {

void check_graph(Draft& draft) {
  bind_settings(draft);
  bind_limits(draft);
  bind_trace(draft);
  bind_models(draft);
  bind_services(draft);
  bind_tenants(draft);
  bind_resources(draft);
  bind_nodes(draft);
  bind_places(draft);
  count_inflight(draft);
  count_rows(draft);
  check_curricula(draft);
  name_objectives(draft);
  name_served_models(draft);
  share_out(draft);
  resolve_edges(draft);
  count_memory(draft);
  for (const auto rule : {check_nodes_exist,
                          check_tenants_exist,
                          check_tenant_limits,
                          check_clients,
                          check_drain,
                          check_batches,
                          check_inflight,
                          check_sequence_lengths,
                          check_teachers,
                          check_message_sizes,
                          check_demands,
                          check_models,
                          check_adapters,
                          check_sequence_room,
                          check_connected,
                          check_runs,
                          check_servers_of_clients,
                          check_edges_once,
                          check_recording,
                          check_fan_out,
                          check_forward_cycles,
                          check_feedback,
                          check_single,
                          check_one_tenant,
                          check_restart,
                          check_places,
                          check_resource_copies,
                          check_shared_learners,
                          check_devices,
                          check_place_sizes,
                          check_transports,
                          check_unused,
                          check_weights,
                          check_threads,
                          check_memory,
                          check_handles,
                          check_stops,
                          check_recompute,
                          check_adapter_slots,
                          check_tokenizers,
                          check_files,
                          check_setups,
                          check_machine_cpus,
                          check_idle_options})
    rule(draft);
  check_training(draft);
  check_served_names(draft);
  check_limited_optimizers(draft);
}

}  // namespace primerl
