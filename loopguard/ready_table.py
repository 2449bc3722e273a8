"""The tools that common coding agents bring along, described once so that nobody has to.

Names are exact. Tools whose names people use for their own (``search``, ``run``) are not here, and neither are plans
whose steps are part of the call (``update_plan``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from loopguard.signature import ToolSpec, spec_from_options

_PATH_NAMES = ("file_path", "path", "absolute_path", "target_file", "notebook_path", "filePath", "filename")


def file_argument(arguments: Mapping[str, Any]) -> Any:
    """The path among the arguments of a file tool; agents name it differently."""
    return next((arguments[name] for name in _PATH_NAMES if arguments.get(name)), None)


_SHELL_IGNORED = ("description", "timeout", "timeout_ms", "run_in_background", "explanation", "is_background")

_READS = (
    "Grep Glob LS LSP ToolSearch WebFetch WebSearch Task Agent ListMcpResourcesTool ReadMcpResourceTool list_dir"
    " list_directory list_files glob grep_search file_search codebase_search search_files search_file_content"
    " list_code_definition_names read_many_files google_web_search web_fetch web_search view_image read_lints"
)
_THINKS = (
    "TodoWrite TodoRead TaskCreate TaskGet TaskList TaskUpdate EnterPlanMode ExitPlanMode AskUserQuestion Skill"
    " todo_write write_todos think"
)
_EDITS = (
    "Edit Write MultiEdit NotebookEdit write_file edit_file write_to_file replace_in_file search_replace delete_file"
    " replace create_file"
)
_SHELLS = "Bash bash shell local_shell execute_bash execute_command run_shell_command run_terminal_cmd"


def _specs() -> dict[str, ToolSpec]:
    shell = {"kind": "shell", "ignored": _SHELL_IGNORED}
    by_command = {"by": "command", "view": "read", "*": "write"}
    groups: dict[str, dict[str, Any]] = {
        _SHELLS: {**shell, "primary": "command"},
        "exec_command": {**shell, "primary": "cmd"},
        "BashOutput TaskOutput AgentOutputTool write_stdin": {"kind": "poll"},
        "KillShell KillBash TaskStop apply_patch": {"kind": "write"},
        "Read NotebookRead read_file view_file": {"reads": file_argument},
        _EDITS: {"edits": file_argument},
        "str_replace_editor str_replace_based_edit_tool": {
            "kind": by_command,
            "reads": file_argument,
            "edits": file_argument,
        },
        _READS: {"kind": "read"},
        _THINKS: {"kind": "think"},
    }
    return {name: spec_from_options(name, options) for names, options in groups.items() for name in names.split()}


#: Tool name -> what is known about it.
READY_TABLE: Final[Mapping[str, ToolSpec]] = _specs()


def spec_for(name: str, tables: Mapping[str, ToolSpec] | Iterable[Mapping[str, ToolSpec]] = ()) -> ToolSpec:
    """What is known about a tool by its name.

    Args:
        name: the tool's name, as the model calls it.
        tables: a table of the user, or several of which the first that has the name counts. An entry replaces that of
            the ready table altogether.

    Returns:
        The entry, or a ``ToolSpec`` that knows the name alone.
    """
    for table in (tables,) if isinstance(tables, Mapping) else tables:
        if name in table:
            return table[name]
    return READY_TABLE.get(name) or ToolSpec(name=name)
