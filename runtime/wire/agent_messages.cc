#include "runtime/wire/agent_messages.h"

namespace primerl {

std::vector<const MessageType*> agent_message_catalog() {
  return {
      &message_type<PrepareRun>(),     &message_type<RunPrepared>(),  &message_type<LaunchWorker>(),
      &message_type<WorkerLaunched>(), &message_type<WorkerExited>(), &message_type<KillWorker>(),
      &message_type<TunnelBytes>(),    &message_type<TunnelCredit>(), &message_type<TunnelEnded>(),
      &message_type<AgentBeat>(),      &message_type<AgentLeaving>(), &message_type<LeaveRun>(),
      &message_type<RunDropped>(),
  };
}

}  // namespace primerl
