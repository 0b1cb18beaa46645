/// The tenants of a run as Prometheus text: one sample for each slot that has a tenant, for at most
/// kTenantLabelsMax of them. The others are added up as one tenant, `~other`, where a sum says
/// something. Plain functions, any thread.
#pragma once

#include <vector>

#include "runtime/monitor/prometheus.h"
#include "runtime/monitor/status_store.h"

namespace primerl {

/// Most tenants with labels of their own: those for which engines computed most in the last minute.
inline constexpr size_t kTenantLabelsMax = 64;
/// No tenant has this name.
inline constexpr std::string_view kOtherTenants = "~other";

/// By slot: whether the tenant has labels of its own; false for a free slot.
std::vector<bool> labelled_tenants(const RunSnapshot& picture);

/// Steps, states and alarms of the tenants, and the last line of metrics.jsonl of each.
void write_tenant_metrics(PrometheusText& out, const RunSnapshot& picture, Time now);

}  // namespace primerl
