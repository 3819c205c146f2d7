// SaveTicket: what all ranks of a save must know of it to give their files names: drawn by the coordinator at its
// claim.
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
  bool fresh = false;  // the directory held nothing but files of others: DCP's names are free
};

// The final name of a rank's `number`-th data file.
std::string data_file_name(const SaveTicket& ticket, std::uint32_t rank, std::uint32_t number);

// The coding stays within one job, whose processes run the same Cairn.
void append_identity(std::string& out, const SaveIdentity& identity);
Result<SaveIdentity> read_identity(manifest::CodedReader& reader);
void append_ticket(std::string& out, const SaveTicket& ticket);
Result<SaveTicket> read_ticket(manifest::CodedReader& reader);

// A ticket alone.
std::string encode_ticket(const SaveTicket& ticket);
Result<SaveTicket> decode_ticket(std::string_view message);

}  // namespace cairn::commit
