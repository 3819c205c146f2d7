// `cairn status`: the running saves in a directory, and the saves that died there.
#pragma once

#include <cairn/latest.h>

#include <filesystem>
#include <string>

#include "json_writer.h"
#include "outcome.h"

namespace cairn::cli {

// The state of a save, for people.
std::string story_of(const SaveInFlight& save);

void write_save(JsonWriter& json, const SaveInFlight& save);

// Like cairn::saves_in_flight(): `root` is a checkpoint or a folder of checkpoints.
Outcome status(const std::filesystem::path& root, bool as_json);

}  // namespace cairn::cli
