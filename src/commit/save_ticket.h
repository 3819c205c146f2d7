// SaveTicket: the identity of a save, from which all ranks make the names of their files. The coordinator issues the
// ticket after its claim.
#pragma once

#include <cairn/result.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "commit/lease.h"
#include "format/manifest/varint.h"

namespace cairn::commit {

struct SaveTicket {
  SaveIdentity identity;
  bool fresh = false;  // the directory held only unrelated files: DCP's names are free
};

// The final name of a rank's `number`-th data file.
std::string data_file_name(const SaveTicket& ticket, std::uint32_t rank, std::uint32_t number);

// Only processes of a job, which run a common version of Cairn, exchange the messages.
void append_identity(std::string& out, const SaveIdentity& identity);
Result<SaveIdentity> read_identity(manifest::CodedReader& reader);
void append_ticket(std::string& out, const SaveTicket& ticket);
Result<SaveTicket> read_ticket(manifest::CodedReader& reader);

// A message with only a ticket.
std::string encode_ticket(const SaveTicket& ticket);
Result<SaveTicket> decode_ticket(std::string_view message);

}  // namespace cairn::commit
