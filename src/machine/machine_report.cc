// 1. A new thread examines the directory: its calls may hang. The calling thread ages the calls, and asks for an
//    interruption.
// 2. After an interruption or a call that exceeds its deadline, the calling thread removes the folder of the trials,
//    for which a storage that hangs has kRemovalMax.
// 3. The calling thread examines the rest of the machine.
#include <cairn/bucket_url.h>
#include <cairn/inspect.h>

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <utility>

#include "events/work.h"
#include "machine/directory_trial.h"
#include "machine/machine_findings.h"
#include "os/call_within.h"
#include "storage/watched_call.h"

namespace cairn {
namespace {

using checkpointer::DirectIo;
using checkpointer::DirectoryTrial;
using checkpointer::Failure;
using checkpointer::MachineFindings;
using checkpointer::NameTrials;
using checkpointer::rate_text;
using checkpointer::size_text;

constexpr std::chrono::seconds kRemovalMax{2};
constexpr std::uint64_t kTrialBytesMin = std::uint64_t{16} << 20;
// On a tmpfs, and through the page cache, whose sync has a single deadline.
constexpr std::uint64_t kCachedTrialBytesMax = std::uint64_t{64} << 20;

struct FileSystemKind {
  std::uint64_t magic;
  const char* name;
  bool is_remote;
};
// linux/magic.h has no names for the numbers that stand here.
constexpr FileSystemKind kKinds[] = {
    {EXT4_SUPER_MAGIC, "ext4", false},
    {XFS_SUPER_MAGIC, "xfs", false},
    {BTRFS_SUPER_MAGIC, "btrfs", false},
    {TMPFS_MAGIC, "tmpfs", false},
    {OVERLAYFS_SUPER_MAGIC, "overlay", false},
    {F2FS_SUPER_MAGIC, "f2fs", false},
    {0x2FC12FC1, "zfs", false},
    {NFS_SUPER_MAGIC, "nfs", true},
    {CIFS_SUPER_MAGIC, "cifs", true},
    {0xFE534D42, "smb2", true},
    {CEPH_SUPER_MAGIC, "ceph", true},
    {V9FS_MAGIC, "9p", true},
    {0x0BD00BD0, "lustre", true},
    {0x47504653, "gpfs", true},
    {0x19830326, "beegfs", true},
    {0x65735546, "fuse", true},
};

struct FileSystem {
  std::uint64_t magic = 0;
  std::uint64_t free_bytes = 0;  // for this user
};

MachineFinding file_system_finding(std::uint64_t magic) {
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [magic](const FileSystemKind& known) { return known.magic == magic; });
  if (magic == TMPFS_MAGIC) {
    return {"file_system", "tmpfs: memory", "checkpoints take memory of the machine",
            "a checkpoint in memory is lost with the machine: save onto a disk"};
  }
  char number[32];
  std::snprintf(number, sizeof number, "of type 0x%llx", static_cast<unsigned long long>(magic));
  const bool is_known = kind != std::end(kKinds);
  const std::string found =
      is_known ? std::string(kind->name) + (kind->is_remote ? ", remote" : ", local") : std::string(number);
  return {"file_system", found, "the steps of a save are the same on every file system"};
}

MachineFinding free_space_finding(std::uint64_t free) {
  MachineFinding finding{"free_space", size_text(static_cast<double>(free)) + " for this user",
                         "a save reserves the room of its files before it writes; an overwrite needs room for both "
                         "checkpoints"};
  finding.number = free;
  if (free < (std::uint64_t{1} << 30)) finding.advice = "make room: a save without room fails";
  return finding;
}

MachineFinding name_finding(const char* subject, const Failure& failure, const char* use, const char* otherwise) {
  if (!failure) return {subject, "works", use};
  return {subject, "fails: " + *failure, otherwise};
}

MachineFinding obstacle(const char* subject, const std::string& found, const char* advice) {
  MachineFinding finding{subject, found, "saves into the directory fail", advice};
  finding.is_obstacle = true;
  return finding;
}

void add_names(MachineFindings& findings, const NameTrials& trials) {
  findings.push_back(trials.rename ? obstacle("rename", "fails: " + *trials.rename, "save into another file system")
                                   : name_finding("rename", {}, "the rename of .metadata commits a save", ""));
  findings.push_back(name_finding("rename_noreplace", trials.keeping_rename, "data files get their names in one step",
                                  trials.link ? "data files get their names over empty files of Cairn's own"
                                              : "data files get their names by hard links"));
  findings.push_back(name_finding(
      "hard_link", trials.link,
      trials.keeping_rename ? "used in place of rename_noreplace" : "not used: rename_noreplace works", "not used"));
  MachineFinding sync = name_finding("sync", trials.sync, "a durable save syncs its files and folders, then returns",
                                     "durable saves fail; buffered saves (Durability) work");
  sync.is_obstacle = trials.sync.has_value();
  findings.push_back(std::move(sync));
  MachineFinding lock = name_finding("lock", trials.lock, "a lock orders the commits of several jobs",
                                     "saves work without a lock: two jobs may commit at the same time");
  if (trials.lock) lock.advice = "let one job at a time save into the directory";
  findings.push_back(std::move(lock));
}

MachineFinding direct_finding(const DirectIo& direct) {
  if (direct.refused) {
    return {"direct_io", "refused: " + *direct.refused, "files are read and written through the page cache",
            "expect more processor time per byte, and dirty pages beside the trainer"};
  }
  return {"direct_io",
          direct.is_known ? "alignment " + std::to_string(direct.memory_alignment) + " bytes in memory, " +
                                std::to_string(direct.offset_alignment) + " in the file"
                          : "works; the kernel states no alignment",
          "large files are written past the page cache, in requests aligned to 4096 bytes; loads read past the cache "
          "what the cache does not hold"};
}

MachineFinding rate_finding(const char* subject, const storage::RawTransfer& transfer, const std::string& how,
                            const std::string& use, const char* advice) {
  constexpr double kSlow = 200e6;
  MachineFinding finding{subject, rate_text(transfer.rate()) + how, use};
  finding.number = static_cast<std::uint64_t>(transfer.rate());
  finding.unit = MachineFinding::Unit::kBytesPerSecond;
  if (transfer.rate() < kSlow) finding.advice = advice;
  return finding;
}

// At most a quarter of the free room is taken.
Result<MachineFindings> rate_findings(const DirectoryTrial& trial, bool direct, const FileSystem& system,
                                      const MachineOptions& options, const std::function<bool()>& interrupted) {
  std::uint64_t bytes = std::min(options.trial_bytes, system.free_bytes / 4);
  if (!direct || system.magic == TMPFS_MAGIC) bytes = std::min(bytes, kCachedTrialBytesMax);
  const char* const none = "as with any rate: Cairn does not adapt to it";
  if (bytes < std::min(kTrialBytesMin, options.trial_bytes)) {
    return MachineFindings{{"disk", "not measured: too little room", none}};
  }
  Result<DirectoryTrial::Rates> rates = trial.measure(bytes, direct, options.trial_time, interrupted);
  if (!rates && rates.error().code() == ErrorCode::kCancelled) return std::move(rates).error();
  if (!rates)
    return MachineFindings{obstacle("disk", std::string("fails: ") + rates.error().what(), "look at the disk")};
  const std::string how = " (" + size_text(static_cast<double>(rates->write.bytes)) +
                          (direct ? ", past the page cache" : ", through the page cache");
  const std::string requests = std::to_string(storage::kRawRequestsInFlight);
  return MachineFindings{rate_finding("disk_write", rates->write, how + ", synced)",
                                      "a save writes with " + requests + " requests in flight, as measured",
                                      "slower than 0.2 GB/s: save asynchronously, or onto a faster disk"),
                         rate_finding("disk_read", rates->read, how + ")",
                                      "a cold load reads with " + requests + " requests in flight, as measured",
                                      "slower than 0.2 GB/s: copy checkpoints to a faster disk before a load")};
}

Result<FileSystem> file_system_of(const std::filesystem::path& directory, storage::OperationWatch& operations) {
  const storage::OperationWatch::Call call(operations, storage::OperationKind::kNames, "examining", directory.string());
  struct stat status {};
  struct statfs system {};
  if (stat(directory.c_str(), &status) != 0 || statfs(directory.c_str(), &system) != 0) {
    return Error::from_errno(errno, "the directory can't be examined").file(directory.string());
  }
  if (!S_ISDIR(status.st_mode)) {
    return Error(ErrorCode::kInvalidArgument, "not a directory").file(directory.string()).expected("a directory");
  }
  return FileSystem{static_cast<std::uint32_t>(system.f_type),
                    std::uint64_t{system.f_bavail} * static_cast<std::uint64_t>(system.f_bsize)};
}

// Step 1.
Result<MachineFindings> directory_findings(const std::filesystem::path& directory, const std::filesystem::path& folder,
                                           const MachineOptions& options, storage::Watch& watch) {
  CAIRN_TRY_ASSIGN(const FileSystem system, file_system_of(directory, *watch.operations));
  MachineFindings findings{file_system_finding(system.magic), free_space_finding(system.free_bytes)};
  DirectoryTrial trial(folder, watch.operations);
  if (const Failure failure = trial.make_files()) {
    findings.push_back(obstacle("write", "fails: " + *failure,
                                "give this user the right to write into the directory, or name another one"));
    findings.back().use = "only loads work";
    return findings;
  }
  findings.push_back({"write", "works", "saves and loads"});
  const Result<NameTrials> names = trial.try_names();
  if (!names) {
    findings.push_back(obstacle("names", std::string("fails: ") + names.error().what(), "look at the disk"));
    return findings;
  }
  add_names(findings, *names);
  const DirectIo direct = trial.try_direct_io();
  findings.push_back(direct_finding(direct));
  CAIRN_TRY_ASSIGN(MachineFindings rates, rate_findings(trial, !direct.refused.has_value(), system, options,
                                                        [&watch] { return watch.stop.is_set(); }));
  std::move(rates.begin(), rates.end(), std::back_inserter(findings));
  return findings;
}

}  // namespace

Result<std::vector<MachineFinding>> examine_machine(const std::filesystem::path& directory,
                                                    const MachineOptions& options) {
  if (is_bucket_url(directory)) {
    return Error(ErrorCode::kInvalidArgument, "the examination needs a directory of a file system")
        .actual(directory.string());
  }
  const std::filesystem::path folder = DirectoryTrial::folder_in(directory);
  MachineOptions for_work = options;
  for_work.interrupted = {};  // the caller's function stays on the calling thread
  const events::Work work = events::Work::begin(WorkKind::kExamine, directory.native());
  Result<MachineFindings> findings =
      storage::watched_call({options.interrupted,
                             {},
                             Error(ErrorCode::kCancelled, "interrupted while examining the machine"),
                             options.deadlines},
                            [directory, folder, for_work](storage::Watch& watch) {
                              return directory_findings(directory, folder, for_work, watch);
                            });
  if (!findings) {  // (2)
    (void)os::call_within(kRemovalMax, [folder] {
      DirectoryTrial::remove(folder);
      return true;
    });
    if (findings.error().code() != ErrorCode::kUnavailable) return std::move(findings).error();
    findings = MachineFindings{obstacle("storage", findings.error().what(), "look at the disk or its server")};
  }
  for (MachineFinding& finding : checkpointer::machine_findings()) findings->push_back(std::move(finding));  // (3)
  work.end(true);
  return findings;
}

}  // namespace cairn
