// All of Cairn's public API but cairn/mpi.h.
#pragma once

#include <cairn/async_checkpointer.h>  // IWYU pragma: export
#include <cairn/bucket_url.h>          // IWYU pragma: export
#include <cairn/catalog.h>             // IWYU pragma: export
#include <cairn/checkpoint.h>          // IWYU pragma: export
#include <cairn/collectives.h>         // IWYU pragma: export
#include <cairn/convert.h>             // IWYU pragma: export
#include <cairn/events.h>              // IWYU pragma: export
#include <cairn/inspect.h>             // IWYU pragma: export
#include <cairn/latest.h>              // IWYU pragma: export
#include <cairn/managed_run.h>         // IWYU pragma: export
#include <cairn/options.h>             // IWYU pragma: export
#include <cairn/planned_load.h>        // IWYU pragma: export
#include <cairn/progress.h>            // IWYU pragma: export
#include <cairn/repair.h>              // IWYU pragma: export
#include <cairn/result.h>              // IWYU pragma: export
#include <cairn/retention.h>           // IWYU pragma: export
#include <cairn/run_cost.h>            // IWYU pragma: export
#include <cairn/save.h>                // IWYU pragma: export
#include <cairn/state_dict.h>          // IWYU pragma: export
#include <cairn/tensor.h>              // IWYU pragma: export
#include <cairn/trace.h>               // IWYU pragma: export
#include <cairn/version.h>             // IWYU pragma: export
