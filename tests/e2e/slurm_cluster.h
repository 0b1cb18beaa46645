/// A Slurm cluster of two nodes on this machine, for a test: slurmctld and two slurmd in their own
/// namespaces. So the cluster, and all jobs, end with the test, however it ends.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "tests/e2e/run_files.h"

namespace primerl {

class SlurmCluster {
 public:
  SlurmCluster() {
    forget_other_slurms();
    why_not_ = why_not_here();
  }

  /// Why this machine cannot run a cluster; "" when it can.
  const std::string& why_not() const { return why_not_; }
  /// False when it does not work; the test's output then has its messages.
  bool start() {
    write_configuration();
    std::filesystem::create_directory(folder() / "state");
    processes_ = std::make_unique<Program>(
        inside("cd " + folder().string() +
               "; /usr/sbin/slurmctld -D > slurmctld.log 2>&1 & "
               "for n in n1 n2; do /usr/sbin/slurmd -D -N $n > $n.log 2>&1 & done; wait"));
    const std::vector<std::string> idle{"sinfo", "-h", "-N", "-p", "low", "-t", "idle", "-o", "%N"};
    if (wait_until([&] { return !processes_->is_running() || call(idle).out == "n1\nn2\n"; }) &&
        processes_->is_running())
      return true;
    for (const char* log : {"slurmctld.log", "n1.log", "n2.log"})
      if (const auto text = read_text_file(folder() / log); text.ok())
        ADD_FAILURE() << log << ":\n" << *text;
    return false;
  }
  const std::filesystem::path& folder() const { return scratch_.path(); }

  static ProgramEnd call(std::vector<std::string> words) {
    words[0] = "/usr/bin/" + words[0];
    return Program(words).wait();
  }
  /// Submits a script with these `options` of sbatch; returns the job's number.
  std::string submit(const std::string& script, const std::vector<std::string>& options) const {
    std::vector<std::string> words{"sbatch", "--parsable", "--open-mode=append"};
    words.insert(words.end(), options.begin(), options.end());
    const std::filesystem::path file = folder() / "job.sh";
    write_text(file, script);
    words.push_back(file.string());
    const auto end = call(words);
    EXPECT_EQ(end.code, 0) << end.err;
    return end.out.substr(0, end.out.find('\n'));
  }
  /// A field of a job that scontrol shows, such as "JobState" or "Restarts".
  std::string field(const std::string& job, const std::string& name) const {
    const std::string all = call({"scontrol", "show", "job", job}).out;
    const size_t found = all.find(name + '=');
    if (found == std::string::npos) return "";
    const size_t begin = found + name.size() + 1;
    return all.substr(begin, all.find_first_of(" \n", begin) - begin);
  }
  /// Waits until no part of the job runs or is about to run.
  bool wait_until_over(const std::string& job) const {
    return wait_until([&] { return call({"squeue", "-h", "-j", job}).out.empty(); });
  }

 private:
  /// All opened at once, so that they differ; free again at the end.
  static std::array<int, 3> free_ports() {
    std::array<int, 3> sockets, ports;
    for (size_t i = 0; i < ports.size(); ++i) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      socklen_t size = sizeof address;
      sockets[i] = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      EXPECT_EQ(::bind(sockets[i], reinterpret_cast<sockaddr*>(&address), size), 0);
      EXPECT_EQ(::getsockname(sockets[i], reinterpret_cast<sockaddr*>(&address), &size), 0);
      ports[i] = ntohs(address.sin_port);
    }
    for (const int socket : sockets) ::close(socket);
    return ports;
  }

  /// `low` is preempted by `high`, after a grace time.
  void write_configuration() const {
    char host[256] = {};
    (void)::gethostname(host, sizeof host - 1);
    const std::string name(host), here = folder().string();
    const auto ports = free_ports();
    std::string text = "ClusterName=test\nSlurmctldHost=" + name +
                       "(127.0.0.1)\nSlurmctldPort=" + std::to_string(ports[0]) +
                       "\nStateSaveLocation=" + here + "/state\nSlurmdSpoolDir=" + here +
                       "/spool-%n\nSlurmctldPidFile=" + here +
                       "/slurmctld.pid\nSlurmdPidFile=" + here + "/%n.pid\n";
    text +=
        "SlurmUser=root\nAuthType=auth/none\nCredType=cred/none\nMpiDefault=none\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nReturnToService=2\n"
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n"
        "JobAcctGatherType=jobacct_gather/none\nAccountingStorageType=accounting_storage/none\n"
        "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\nKillWait=30\n"
        "SchedulerParameters=bf_interval=1\n";
    for (const int node : {1, 2})
      text += "NodeName=n" + std::to_string(node) + " NodeHostname=" + name +
              " NodeAddr=127.0.0.1 CPUs=1 Port=" + std::to_string(ports[size_t(node)]) + "\n";
    text +=
        "PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime=30\n"
        "PartitionName=high Nodes=ALL PriorityTier=2 PreemptMode=OFF\n";
    write_text(folder() / "slurm.conf", text);
  }

  /// The tests may run inside a job, or where another cluster is available.
  void forget_other_slurms() const {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string pair = *entry;
      for (const char* begin : {"SLURM", "SBATCH_", "SRUN_", "SCANCEL_", "SQUEUE_", "SINFO_"})
        if (pair.starts_with(begin)) names.push_back(pair.substr(0, pair.find('=')));
    }
    for (const auto& name : names) ::unsetenv(name.c_str());
    ::setenv("SLURM_CONF", (folder() / "slurm.conf").c_str(), 1);
  }

  /// A command line in namespaces that end with this process. It has its own /dev/shm: code that
  /// removes the shared memory of dead processes must not see that of others.
  static std::vector<std::string> inside(const std::string& commands) {
    return {"/usr/bin/setpriv",
            "--pdeathsig",
            "KILL",
            "/usr/bin/unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "/bin/sh",
            "-c",
            "mount -t tmpfs none /dev/shm && { " + commands + "; }"};
  }

  static std::string why_not_here() {
    for (const char* program : {"/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/bin/sbatch"})
      if (::access(program, X_OK) != 0) return std::string("no ") + program;
    if (::geteuid() != 0) return "slurmd needs root";
    for (const char* program : {"/usr/bin/setpriv", "/usr/bin/unshare"})
      if (::access(program, X_OK) != 0) return std::string("no ") + program;
    const auto end = Program(inside("true")).wait();
    return end.code == 0 ? "" : "no namespaces: " + end.err;
  }

  const ScratchFolder scratch_;
  std::string why_not_;
  std::unique_ptr<Program> processes_;
};

}  // namespace primerl
