// The findings of examine_machine() that need no directory: memory, huge pages, io_uring, devices.
#pragma once

#include <cairn/inspect.h>

#include <string>
#include <vector>

namespace cairn::checkpointer {

using MachineFindings = std::vector<MachineFinding>;

// "1.5 GiB", "12 MiB"; "1.50 GB/s".
std::string size_text(double bytes);
std::string rate_text(double bytes_per_second);

MachineFindings machine_findings();

}  // namespace cairn::checkpointer
