#include "outcome.h"

#include "printable.h"

namespace cairn::cli {

std::string message_of(const Error& error) { return "cairn: " + printable(error.what()) + "\n"; }

}  // namespace cairn::cli
