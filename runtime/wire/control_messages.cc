#include "runtime/wire/control_messages.h"

namespace primerl {

std::vector<const MessageType*> control_message_catalog() {
  return {
      &message_type<WorkerHello>(),    &message_type<ConnectPeers>(),
      &message_type<PeerDown>(),       &message_type<PeerUp>(),
      &message_type<PeersConnected>(), &message_type<StartRun>(),
      &message_type<GroupsReady>(),    &message_type<GoRun>(),
      &message_type<DrainRun>(),       &message_type<StopRun>(),
      &message_type<TenantFinished>(), &message_type<SetTenantAside>(),
      &message_type<CountGroups>(),    &message_type<GroupsCounted>(),
      &message_type<EndRun>(),         &message_type<Heartbeat>(),
      &message_type<FirstToken>(),     &message_type<LogLine>(),
      &message_type<RunEnded>(),       &message_type<RunRecovered>(),
      &message_type<GroupsCaughtUp>(), &message_type<ResumeLive>(),
      &message_type<HoldEngines>(),    &message_type<HoldAnswered>(),
      &message_type<ChangeTenant>(),   &message_type<DrainTenant>(),
      &message_type<TenantAnswered>(),
  };
}

void fit(Heartbeat& beat, size_t bytes_max) {
  if (body_bytes_max(beat) <= bytes_max) return;
  beat.loads.clear();
  beat.groups.clear();
  beat.instances.clear();
  beat.connections.clear();
  beat.engines.clear();
  beat.engine_uses.clear();
}

}  // namespace primerl
