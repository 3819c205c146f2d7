#include "manual.h"

#include <cairn/version.h>
#include <fmt/format.h>

#include <iterator>
#include <sstream>
#include <string_view>

namespace cairn::cli {
namespace {

// A text in a paragraph: no character of the text is a command of roff, and a hyphen is copied as a minus.
std::string in_roff(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const bool begins_line = result.empty() || result.back() == '\n';
    if (begins_line && (c == '.' || c == '\'')) result += "\\&";
    if (c == '\\') {
      result += "\\e";
    } else {
      result += c == '-' ? std::string("\\-") : std::string(1, c);
    }
  }
  return result;
}

// "--tolerance T", "DIR ...".
std::string name_in_roff(const CLI::Option& option) {
  if (option.get_positional()) {
    const std::string_view more = option.get_items_expected_max() > 1 ? " ..." : "";
    return fmt::format("\\fI{}\\fR{}", in_roff(option.get_type_name()), more);
  }
  std::string name = "\\fB" + in_roff("--" + option.get_lnames().front()) + "\\fR";
  if (option.get_items_expected_max() != 0) name += fmt::format(" \\fI{}\\fR", in_roff(option.get_type_name()));
  return name;
}

std::string synopsis_in_roff(const CLI::App& command) {
  std::string text = "\\fBcairn " + in_roff(command.get_name()) + "\\fR [\\fIOPTION\\fR ...]";
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    const std::string name = name_in_roff(*option);
    text += option->get_required() ? " " + name : " [" + name + "]";
  }
  return text;
}

// Indented lines keep their breaks; an empty line ends a paragraph.
std::string footer_in_roff(const std::string& footer) {
  std::string text;
  bool is_literal = false;
  std::istringstream lines(footer);
  for (std::string line; std::getline(lines, line);) {
    const bool is_indented = line.starts_with("  ");
    if (is_indented != is_literal) text += is_indented ? ".PP\n.nf\n.RS 4\n" : ".RE\n.fi\n";
    is_literal = is_indented;
    text += line.empty() ? ".PP" : in_roff(is_indented ? std::string_view(line).substr(2) : std::string_view(line));
    text += "\n";
  }
  return is_literal ? text + ".RE\n.fi\n" : text;
}

std::string command_in_roff(const CLI::App& command) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, ".SS {}\n{}\n.PP\n{}.\n", in_roff(command.get_name()), synopsis_in_roff(command),
                 in_roff(command.get_description()));
  for (const CLI::Option* option : command.get_options()) {
    fmt::format_to(out, ".TP\n{}\n{}\n", name_in_roff(*option), in_roff(option->get_description()));
  }
  return text + ".PP\n" + footer_in_roff(command.get_footer());
}

}  // namespace

std::string manual_of(const CLI::App& tool) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, ".TH CAIRN 1 \"\" \"cairn {}\" \"User Commands\"\n", kVersion);
  fmt::format_to(out, ".SH NAME\ncairn \\- looks at checkpoints of training states, converts them, and cleans up\n");
  fmt::format_to(out, ".SH SYNOPSIS\n\\fBcairn\\fR \\fICOMMAND\\fR [\\fIARGUMENT\\fR ...]\n");
  fmt::format_to(out, ".SH DESCRIPTION\n{}\n", in_roff(tool.get_description()));
  text += ".SH COMMANDS\n";
  for (const CLI::App* command : tool.get_subcommands({})) text += command_in_roff(*command);
  fmt::format_to(out, ".SH EXIT STATUS\n{}\n", in_roff(tool.get_footer()));
  return text;
}

}  // namespace cairn::cli
