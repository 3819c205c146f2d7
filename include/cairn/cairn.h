// All of Cairn's public API.
#pragma once

#include <cairn/async_checkpointer.h>    // IWYU pragma: export
#include <cairn/box.h>                   // IWYU pragma: export
#include <cairn/callback_collectives.h>  // IWYU pragma: export
#include <cairn/catalog.h>               // IWYU pragma: export
#include <cairn/checkpoint.h>            // IWYU pragma: export
#include <cairn/collectives.h>           // IWYU pragma: export
#include <cairn/convert.h>               // IWYU pragma: export
#include <cairn/diff.h>                  // IWYU pragma: export
#include <cairn/dtype.h>                 // IWYU pragma: export
#include <cairn/durability.h>            // IWYU pragma: export
#include <cairn/error.h>                 // IWYU pragma: export
#include <cairn/in_flight.h>             // IWYU pragma: export
#include <cairn/key_pattern.h>           // IWYU pragma: export
#include <cairn/latest.h>                // IWYU pragma: export
#include <cairn/local_group.h>           // IWYU pragma: export
#include <cairn/result.h>                // IWYU pragma: export
#include <cairn/save_deadlines.h>        // IWYU pragma: export
#include <cairn/save_steps.h>            // IWYU pragma: export
#include <cairn/state_dict.h>            // IWYU pragma: export
#include <cairn/value.h>                 // IWYU pragma: export
#include <cairn/verify.h>                // IWYU pragma: export
#include <cairn/verify_level.h>          // IWYU pragma: export
#include <cairn/version.h>               // IWYU pragma: export
