/// The tenant that `replay --tenant` plays, among those that had the slots of a recorded run. Plain
/// functions, any thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/trace/read/tenant_uses.h"
#include "runtime/trace/read/trace.h"

namespace primerl {

/// The use that `name` means: "alice" the use with that label, or the only one by this name;
/// "alice~2" a later one. kInvalid when several fit, with their labels.
Result<const TenantUse*> choose_use(const Trace& trace, const std::string& name);

/// By GroupId: the step after which the tenant had left the group; UINT64_MAX: it stayed to the
/// end. Empty: it stayed in all of them.
std::vector<uint64_t> last_steps_of(const Trace& trace, const TenantUse& use);

/// Names the earlier tenants of its slot; "" if there were none. A replay of the tenant plays them
/// before it, because their actors left the counts of the slot's links as they are.
std::string earlier_uses_text(const Trace& trace, const TenantUse& use);

}  // namespace primerl
