// The plans of the checkpoints that this process has opened for a load: a restarted job goes on with the plan of the
// checkpoint that it has loaded.
//
// The process keeps the last four commit records; a forked child keeps none. Thread-safe.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "format/manifest/commit_record.h"

namespace cairn::checkpointer {

struct NotedPlan {
  std::filesystem::path directory;  // absolute
  std::string metadata_name;
  manifest::CommitRecord record;
};

// Notes a checkpoint that was opened for a load, if its commit record has a plan.
void note_recorded_plan(const std::filesystem::path& directory, const std::string& metadata_name,
                        const manifest::CommitRecord& record);

// Most recently noted first.
std::vector<std::shared_ptr<const NotedPlan>> noted_plans();
void forget_noted_plan(const NotedPlan& plan);

}  // namespace cairn::checkpointer
