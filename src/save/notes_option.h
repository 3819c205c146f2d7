// check_notes_of: the check of SaveOptions::notes, before a save begins.
#pragma once

#include <cairn/result.h>
#include <cairn/save.h>

#include "format/manifest/notes.h"

namespace cairn::checkpointer {

inline Result<void> check_notes_of(const SaveOptions& options) {
  if (options.notes.empty()) return {};
  if (options.safetensors) {
    return Error(ErrorCode::kUnsupported,
                 "a safetensors model has no place for notes; save a DCP checkpoint with them");
  }
  return manifest::check_notes(options.notes);
}

}  // namespace cairn::checkpointer
