/// What engines, learners, weight channels and processes outside do when a tenant joins or leaves a
/// slot (docs/design/hosted.md). Plain functions; call them on the thread that the resource belongs
/// to.
#pragma once

#include "graph/base/resource.h"
#include "graph/plan.h"
#include "graph/tenant_change.h"

namespace primerl {

/// The resource at `index` of plan.resources hears that `tenant` joins (kJoin) or leaves (kLeave)
/// its slot, or has another share (kSet); other kinds and other resources are ignored. A learner
/// makes or drops the tenant's adapter and optimizer; an engine and a weight channel drop the
/// tenant's moving key. The Outside of its slot starts or ends the processes of its environments
/// and rewards.
Status notify_resource(const Plan& plan, int32_t index, Resource& resource, const Tenant& tenant,
                       TenantChange::Kind kind);

}  // namespace primerl
