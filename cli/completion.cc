#include "completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>
#include <string_view>
#include <vector>

#include "command_line.h"

namespace cairn::cli {
namespace {

// Escapes text within single quotes of bash and zsh.
std::string in_single_quotes(std::string_view text) {
  std::string result;
  for (const char c : text) result += c == '\'' ? "'\\''" : std::string(1, c);
  return result;
}

// Escapes text within single quotes of fish. The escapes of fish differ from bash's.
std::string quoted_for_fish(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

// Escapes text for _arguments and _describe, where brackets and colons have a meaning.
std::string quoted_for_zsh(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return in_single_quotes(result);
}

// The words that a command without a directory takes.
std::string words_of(const CLI::App& tool, const CLI::App& command) {
  return command.get_name() == "help" ? fmt::format("{}", fmt::join(command_names(tool), " ")) : "bash zsh fish";
}

bool takes_directory(const CLI::App& command) { return command.get_option_no_throw("directory") != nullptr; }

std::string bash_script(const CLI::App& tool) {
  std::string cases;
  for (const CLI::App* command : tool.get_subcommands({})) {
    const std::string words = takes_directory(*command) ? "" : " words='" + words_of(tool, *command) + "'";
    fmt::format_to(std::back_inserter(cases), "    {}) options='{}'{} ;;\n", command->get_name(),
                   fmt::join(option_names(*command), " "), words);
  }
  return fmt::format(R"sh(# bash completion of cairn: eval "$(cairn completion bash)"
_cairn() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} command='' options='' words='' i
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    [[ ${{COMP_WORDS[i]}} == -* ]] || {{ command=${{COMP_WORDS[i]}}; break; }}
  done
  case $command in
    '') options='{}' words='{}' ;;
{}  esac
  [[ $word != -* ]] || words=$options
  if [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  elif [[ -n $options ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}}
complete -F _cairn cairn
)sh",
                     fmt::join(option_names(tool), " "), fmt::join(command_names(tool), " "), cases);
}

std::string zsh_arguments(const CLI::App& tool, const CLI::App& command) {
  std::string arguments;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      fmt::format_to(std::back_inserter(arguments), " \\\n        '--{}[{}]{}'", name,
                     quoted_for_zsh(option->get_description()), option->get_items_expected_max() == 0 ? "" : ":N:");
    }
  }
  if (!takes_directory(command)) return arguments + " \\\n        '1:word:(" + words_of(tool, command) + ")'";
  const bool takes_several = command.get_option("directory")->get_items_expected_max() > 1;
  arguments += takes_several ? " \\\n        '*:directory:_files'" : " \\\n        '1:directory:_files'";
  if (command.get_option_no_throw("other") != nullptr) arguments += " \\\n        '2:directory:_files'";
  if (command.get_option_no_throw("target") != nullptr) arguments += " \\\n        '2:target:_files'";
  return command.get_option_no_throw("keys") == nullptr ? arguments : arguments + " \\\n        '*:key:'";
}

std::string zsh_script(const CLI::App& tool) {
  std::string commands, cases;
  for (const CLI::App* command : tool.get_subcommands({})) {
    fmt::format_to(std::back_inserter(commands), "      '{}:{}'\n", command->get_name(),
                   quoted_for_zsh(command->get_description()));
    fmt::format_to(std::back_inserter(cases), "    {})\n      _arguments{} ;;\n", command->get_name(),
                   zsh_arguments(tool, *command));
  }
  return fmt::format(R"sh(#compdef cairn
# zsh completion of cairn: eval "$(cairn completion zsh)" after compinit, or a file _cairn in a folder of $fpath
_cairn() {{
  if (( CURRENT == 2 )); then
    local -a commands
    commands=(
{}    )
    _describe command commands
    [[ $words[2] != -* ]] || compadd -- {}
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
if [[ $funcstack[1] == _cairn ]]; then
  _cairn "$@"
else
  compdef _cairn cairn
fi
)sh",
                     commands, fmt::join(option_names(tool), " "), cases);
}

std::string fish_script(const CLI::App& tool) {
  std::string script = "# fish completion of cairn: cairn completion fish | source\ncomplete -c cairn -f\n";
  const auto out = std::back_inserter(script);
  const auto add_options = [&](const CLI::App& command, const std::string& condition) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) {
        fmt::format_to(out, "complete -c cairn -n '{}' -l {}{} -d '{}'\n", condition, name,
                       option->get_items_expected_max() == 0 ? "" : " -x", quoted_for_fish(option->get_description()));
      }
    }
  };
  add_options(tool, "__fish_use_subcommand");
  for (const CLI::App* command : tool.get_subcommands({})) {
    fmt::format_to(out, "complete -c cairn -n __fish_use_subcommand -a {} -d '{}'\n", command->get_name(),
                   quoted_for_fish(command->get_description()));
    const std::string condition = "__fish_seen_subcommand_from " + command->get_name();
    add_options(*command, condition);
    fmt::format_to(out, "complete -c cairn -n '{}' -a '{}'\n", condition,
                   takes_directory(*command) ? "(__fish_complete_path)" : words_of(tool, *command));
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& tool, const std::string& shell) {
  if (shell == "bash") return bash_script(tool);
  return shell == "zsh" ? zsh_script(tool) : fish_script(tool);
}

}  // namespace cairn::cli
