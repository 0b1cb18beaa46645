#include "runtime/control/hosts_file.h"

#include <gmock/gmock.h>

#include "runtime/control/run_hosts.h"
#include "runtime/transport/keys.h"

namespace primerl {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const std::string kKey = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

/// A plan of processes on these machines.
Plan plan_on(const std::vector<std::string>& machines) {
  Plan plan;
  for (const auto& machine : machines) {
    PlanProcess process;
    process.name = "on_" + (machine.empty() ? "here" : machine);
    process.machine = machine;
    plan.processes.push_back(std::move(process));
  }
  return plan;
}

std::string findings(const std::string& text,
                     const std::vector<std::string>& machines = {"", "gpu1"}) {
  const HostsFile file = read_hosts_text(text, "hosts.toml", plan_on(machines));
  return render(file.diagnostics, file.sources);
}

TEST(HostsFile, TheExampleIsOne) {
  const auto file = read_hosts(std::string(PRIMERL_SOURCE_DIR) + "/examples/split/hosts.toml",
                               plan_on({"", "gpu1", "gpu2"}));
  ASSERT_TRUE(file.ok()) << file.error().text();
  EXPECT_THAT(render(file->diagnostics, file->sources), IsEmpty());
  EXPECT_EQ(file->hosts.size(), 2u);
}

TEST(HostsFile, SaysWhereAgentsAre) {
  const HostsFile file = read_hosts_text("[host.gpu1]\nagent = \"10.0.0.5:7300\"\nkey = \"" + kKey +
                                             "\"\n[host.gpu2]\nagent = \"[::1]:65535\"\n"
                                             "[host.\"a.b\"]\nagent = \"127.0.0.1:1\"\n"
                                             "listen = \"127.0.0.2\"\n",
                                         "hosts.toml", plan_on({"gpu1", "gpu2", "", "a.b"}));
  ASSERT_THAT(render(file.diagnostics, file.sources), IsEmpty());
  ASSERT_EQ(file.hosts.size(), 3u);
  EXPECT_EQ(file.hosts[0].name, "gpu1");
  EXPECT_EQ(file.hosts[0].agent, "10.0.0.5:7300");
  EXPECT_EQ(file.hosts[0].key, kKey);
  EXPECT_EQ(file.hosts[0].listen, "10.0.0.5");
  EXPECT_EQ(file.hosts[1].listen, "[::1]");
  EXPECT_EQ(file.hosts[2].listen, "127.0.0.2");
}

TEST(HostsFile, PointsAtWhatItDoesNotKnow) {
  EXPECT_EQ(findings("[hosts.gpu1]\nagent = \"127.0.0.1:1\"\n"),
            "hosts.toml:1:1: error[H005]: no [host.gpu1]: process 'on_gpu1' runs there\n"
            "    1 | [hosts.gpu1]\n"
            "      | ^~~~~~~~~~~~\n"
            "\n"
            "hosts.toml:1:2: error[H001]: a hosts file has no 'hosts'\n"
            "    1 | [hosts.gpu1]\n"
            "      |  ^~~~~\n"
            "   note: it has one [host.NAME] for each machine, nothing else\n"
            "\n"
            "2 errors\n");
  EXPECT_THAT(findings("[host.gpu1]\nagnt = \"127.0.0.1:1\"\n"),
              testing::AllOf(HasSubstr("hosts.toml:2:1: error[G020]"),
                             HasSubstr("did you mean 'agent'?"), HasSubstr("1 error\n")));
  EXPECT_THAT(findings("host = 3\n"), HasSubstr("hosts.toml:1:1: error[H001]"));
  EXPECT_THAT(findings("[host]\ngpu1 = 3\n"), HasSubstr("hosts.toml:2:8: error[G021]"));
  EXPECT_THAT(findings("[host.gpu1]\nagent = 7\n"), HasSubstr("hosts.toml:2:9: error[G021]"));
  EXPECT_THAT(findings("[host.gpu1\n"), HasSubstr("error[G001]"));
}

TEST(HostsFile, PointsAtAddressesThatAreNone) {
  for (const auto* address :
       {"10.0.0.5", "10.0.0.5:", "10.0.0.5:0", "10.0.0.5:65536", "10.0.0.5:7300x", ":7300",
        "tcp://10.0.0.5:7300", "a b:1", "*:7300", "0.0.0.0:7300", "[::]:7300", "::1:7300",
        "[:::]:7300", "[1.2.3.4]:7300", ""})
    EXPECT_THAT(findings(fmt::format("[host.gpu1]\nagent = \"{}\"\n", address)),
                HasSubstr("hosts.toml:2:9: error[H002]"))
        << address;
  for (const auto* address : {"127.0.0.1:1", "localhost:65535", "[::1]:7300"})
    EXPECT_THAT(findings(fmt::format("[host.gpu1]\nagent = \"{}\"\n", address)), IsEmpty())
        << address;
}

TEST(HostsFile, WantsAKeyBeyondLoopback) {
  EXPECT_THAT(findings("[host.gpu1]\nagent = \"10.0.0.5:7300\"\n"),
              HasSubstr("hosts.toml:2:9: error[H003]: host 'gpu1' is beyond this machine and needs "
                        "the agent's 'key'"));
  EXPECT_THAT(findings("[host.gpu1]\nagent = \"127.0.0.1:1\"\nlisten = \"10.0.0.5\"\n"),
              HasSubstr("hosts.toml:3:10: error[H003]"));
  EXPECT_THAT(findings("[host.gpu1]\nagent = \"127.0.0.1:1\"\nkey = \"short\"\n"),
              HasSubstr("hosts.toml:3:7: error[H003]: 'short' is no public key"));
}

TEST(HostsFile, RefusesOneAgentForTwoHosts) {
  EXPECT_THAT(findings("[host.gpu1]\nagent = \"127.0.0.1:1\"\n[host.gpu2]\nagent = "
                       "\"127.0.0.1:1\"\n",
                       {"gpu1", "gpu2"}),
              HasSubstr("hosts.toml:4:9: error[H004]: hosts 'gpu1' and 'gpu2' have one agent"));
}

TEST(HostsFile, NamesTheHostThatWasMeant) {
  const std::string found = findings("[host.gpu]\nagent = \"127.0.0.1:1\"\n");
  EXPECT_THAT(found, HasSubstr("error[H005]: no [host.gpu1]: process 'on_gpu1' runs there"));
  EXPECT_THAT(found, HasSubstr("did you mean 'gpu'?"));
  EXPECT_THAT(found, HasSubstr("1:7: warning[H006]: no place of the graph is on host 'gpu'"));
}

TEST(HostsFile, OnlyWarnsOfHostsThatTheGraphDoesNotUse) {
  const HostsFile file = read_hosts_text(
      "[host.gpu1]\nagent = \"127.0.0.1:1\"\n[host.gpu2]\nagent = \"127.0.0.1:2\"\n", "hosts.toml",
      plan_on({"gpu1"}));
  EXPECT_FALSE(file.diagnostics.has_errors());
  EXPECT_EQ(file.diagnostics.all().size(), 1u);
  ASSERT_EQ(file.hosts.size(), 1u);
  EXPECT_EQ(file.hosts[0].name, "gpu1");
}

TEST(HostsFile, WantsListenToBeOneAddress) {
  for (const auto* listen : {"*", "0.0.0.0", "127.0.0.1:80", "a b", "::1"})
    EXPECT_THAT(
        findings(fmt::format("[host.gpu1]\nagent = \"127.0.0.1:1\"\nlisten = \"{}\"\n", listen)),
        HasSubstr("hosts.toml:3:10: error[H007]"))
        << listen;
}

TEST(HostsFile, OfTheExampleHasNoFault) {
  const auto file =
      read_hosts(PRIMERL_SOURCE_DIR "/examples/split/hosts.toml", plan_on({"gpu1", "gpu2"}));
  ASSERT_TRUE(file.ok()) << file.error().text();
  EXPECT_THAT(render(file->diagnostics, file->sources), IsEmpty());
  EXPECT_EQ(file->hosts.size(), 2u);
}

TEST(HostsFile, ThatIsNotThereIsAnError) {
  const auto file = read_hosts("/nowhere/hosts.toml", plan_on({"gpu1"}));
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(file.error().text(), HasSubstr("--hosts: "));
  EXPECT_THAT(file.error().text(), HasSubstr("/nowhere/hosts.toml"));
}

std::string setup_fault(const std::vector<std::string>& machines, const HostEntry& host,
                        const std::string& listen, bool has_keys = true) {
  MachineSetup setup;
  setup.hosts = {host};
  if (has_keys) setup.keys = make_key_pair();
  const Status fits = check_host_setup(setup, plan_on(machines), listen);
  return fits.ok() ? "" : fits.error().text();
}

TEST(MachineSetup, ProcessesThatOthersReachNeedAnAddress) {
  const HostEntry far{"gpu1", "10.0.0.5:7300", kKey, "10.0.0.5"};
  const HostEntry near{"gpu1", "127.0.0.1:7300", "", "127.0.0.1"};
  for (const auto* listen : {"", "127.0.0.1"})
    EXPECT_THAT(setup_fault({"", "gpu1"}, far, listen), HasSubstr("--listen ADDRESS")) << listen;
  EXPECT_THAT(setup_fault({"", "gpu1"}, far, "10.0.0.4"), IsEmpty());
  EXPECT_THAT(setup_fault({"gpu1"}, far, ""), IsEmpty());  // no process runs on this machine
  EXPECT_THAT(setup_fault({"", "gpu1"}, near, ""), IsEmpty());
}

TEST(MachineSetup, AHostWithAKeyNeedsARunWithOne) {
  const HostEntry keyed{"gpu1", "127.0.0.1:7300", kKey, "127.0.0.1"};
  EXPECT_THAT(setup_fault({"", "gpu1"}, keyed, "", false),
              HasSubstr("host 'gpu1' has a key, this run has none"));
  EXPECT_THAT(setup_fault({"", "gpu1"}, keyed, ""), IsEmpty());
}

TEST(MachineSetup, NoPlaceHasTheNameOfTheControlPlane) {
  const HostEntry keyed{"gpu1", "127.0.0.1:7300", kKey, "127.0.0.1"};
  MachineSetup setup;
  setup.hosts = {keyed};
  setup.keys = make_key_pair();
  Plan plan = plan_on({"", "gpu1"});
  for (const auto* name : {"control", "control#1"}) {
    plan.processes[0].name = name;
    EXPECT_THAT(check_host_setup(setup, plan, "").error().text(),
                HasSubstr("a place cannot be called 'control'"));
  }
  plan.processes[0].name = "controls";
  EXPECT_TRUE(check_host_setup(setup, plan, "").ok());
}

}  // namespace
}  // namespace primerl
