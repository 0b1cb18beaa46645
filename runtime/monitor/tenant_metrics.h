/// The tenants of a run as Prometheus text: one sample for each slot that has a tenant. Plain
/// function, any thread.
#pragma once

#include "runtime/monitor/prometheus.h"
#include "runtime/monitor/status_store.h"

namespace primerl {

/// Steps, states and alarms of the tenants, and the last line of metrics.jsonl of each.
void write_tenant_metrics(PrometheusText& out, const RunSnapshot& picture, Time now);

}  // namespace primerl
