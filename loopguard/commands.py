"""Which shell commands look, change or wait: the table behind ``kind="shell"``.

A program has rules, tried in order against its arguments (quoted text already taken out), and a kind where none fits.
To teach a program, add a line to the table; programs that are not in it stay unknown.
"""

from __future__ import annotations

from typing import Final

from loopguard.records import Kind

R, W, P, U = Kind.READ, Kind.WRITE, Kind.POLL, Kind.UNKNOWN

#: Kind and regular expression, searched in the arguments joined by one space.
Rule = tuple[Kind, str]
#: Program -> (rules, kind where no rule fits). Patterns are compiled when first used, which keeps the import cheap.
COMMANDS: Final[dict[str, tuple[tuple[Rule, ...], Kind]]] = {}


def names(text: str) -> frozenset[str]:
    """The words of ``text`` as a set."""
    return frozenset(text.split())


def first(words: str, kind: Kind) -> Rule:
    """The first argument that is no option is one of ``words``."""
    return kind, rf"^(?:-[Cc] \S+ |-(?![Cc] )\S+ )*+(?:{'|'.join(words.split())})(?=\s|$)"


def has(pattern: str, kind: Kind) -> Rule:
    """An argument begins with ``pattern``, wherever it stands."""
    return kind, rf"(?:^|\s)(?:{pattern})"


def _put(programs: str, default: Kind, *rules: Rule) -> None:
    for program in programs.split():
        COMMANDS[program] = (rules, default)


# Words that stand before the command that is meant, and those of their options that take a value.
KEYWORDS = names("if then elif else do while until ! { time")
BLOCK_WORDS = names("done fi esac } for case select function in")
WRAPPERS = {
    **dict.fromkeys(
        names("nohup exec command builtin nice ionice stdbuf timeout xargs parallel npx bunx unbuffer"),
        frozenset[str](),
    ),
    **dict.fromkeys(names("sudo doas env"), names("-u -g")),
}
#: `uv run pytest`: what comes after `run` or `exec` is meant.
RUNNERS = names("uv poetry pipenv pdm hatch rye conda mamba bundle direnv")
RUN_OPTIONS = names("--with --extra --group --python --package --name -p -n")
SHELLS = names("sh bash zsh dash ksh fish")
SQL_CLIENTS = names("psql mysql sqlite3 mariadb duckdb")
INTERPRETERS = names("python python2 python3 pypy pypy3 node nodejs deno ruby perl php")

_END = r"(?=\s|$)"
_TESTS = r"(?:\S*[:_-])?(?:tests?|checks?|lint|verify|type-?check|types|spec|unit|e2e|coverage)(?:[:_-]\S*)?" + _END
_BUILDS = (
    r"(?:\S*[:_-])?(?:build|compile|install|package|deploy|fmt|format|clean|fix|generate|publish|assemble)"
    r"(?:[:_-]\S*)?" + _END
)

_put(
    "ls dir cat head less more bat grep egrep fgrep rg ag ack fd locate which whereis type file stat wc uniq cut tr nl"
    " diff cmp comm join paste column tree pwd echo printf date cal uname hostname whoami id groups printenv df du"
    " free uptime ps top lsof ip ifconfig netstat ss ping dig nslookup host traceroute md5sum sha1sum sha256sum"
    " sha512sum md5 shasum cksum xxd od hexdump strings objdump readelf nm jq xmllint test [ ] true false : cd pushd"
    " popd dirname basename realpath readlink seq expr bc man info help history alias set unset export source . shopt"
    " compgen read local declare return exit break continue trap ulimit locale nproc lscpu lsblk rev tac fold shuf"
    " exiftool binwalk tshark base64 ldd getconf nvidia-smi arch tty zcat zgrep",
    R,
)
# Running tests, checks and scripts: the answer changes only when what they look at does.
_put(
    "java lua Rscript julia pytest py.test tox nox"
    " unittest jest vitest mocha ava flake8 mypy pyright pylint bandit golangci-lint shellcheck hadolint rspec ctest"
    " phpunit tsc coverage vulture",
    R,
)
_put(
    " ".join(INTERPRETERS),
    R,
    has(r"\S*manage\.py (?:\w*migrat\w*|loaddata|flush|collectstatic|create\w+)" + _END, W),
    has(r"\S*setup\.py (?:install|build\w*|develop)" + _END, W),
)
_put(
    "rm mv cp mkdir rmdir touch patch chmod chown chgrp ln truncate install shred split csplit mktemp kill pkill"
    " killall rsync scp zip gcc g++ cc c++ clang clang++ rustc javac cmake ninja reboot shutdown useradd usermod"
    " userdel mount umount crontab createdb dropdb apply_patch pre-commit alembic sphinx-build mkdocs",
    W,
)
_put("sleep wait watch inotifywait jobs pgrep squeue qstat sacct", P)

# Text tools and archives: an option makes the difference.
_put("sed gsed", R, has(r"-\w*i|--in-place", W))
_put("perl ruby", R, has(r"-\w*i", W))
_put("awk gawk", R, has(r"-i inplace", W))
_put("yq", R, has(r"-\w*i|--inplace", W))
_put("sort", R, has(r"-o|--output", W))
_put("openssl", R, has(r"-out\s", W))
_put("dd", R, has("of=", W))
_put("tail", R, has(r"-\w*[fF]|--follow", P))
_put("tee", W, has(r"/dev/(?:null|stderr|tty)" + _END, R))
_put("tar", W, (R, r"^-?[a-z]*t[a-z]*" + _END + "|--list"))
_put("unzip", W, has(r"-\w*[lpt]", R))
_put("gzip gunzip bzip2 xz unxz zstd", W, has(r"-\w*[clt]" + _END + r"|--stdout|--list|--test", R))
_put("black isort rustfmt", W, has(r"--check|--diff", R))
_put(
    "prettier gofmt goimports clang-format eslint biome rubocop yapf autopep8 stylelint autoflake",
    R,
    has(r"--fix|--write|-w" + _END + "|-i" + _END + "|--in-place", W),
)
_put("ruff", R, has("--check|--diff", R), first("format clean", W), has("--fix", W))

# The network.
_put(
    "curl",
    R,
    has(r"(?:-X ?|--request[ =])(?!GET|HEAD)\w|--data|--form|--json|--upload-file|-\w*[dFT]" + _END, W),
    has(r"(?:-\w*o|--output) /dev/", R),
    has(r"-\w*[oO]" + _END + "|--output|--remote-name", W),
)
_put("wget", W, has(r"-q?O ?-|--spider|--output-document=-", R))
_put("http", R, has(r"(?:POST|PUT|PATCH|DELETE)\s", W))

# Version control.
_put(
    "git",
    U,
    first(
        "status log diff show blame grep ls-files ls-tree rev-parse rev-list describe shortlog reflog cat-file"
        " ls-remote for-each-ref merge-base name-rev check-ignore count-objects fsck whatchanged version help"
        " diff-tree show-ref show-branch var symbolic-ref",
        R,
    ),
    has(r"(?:stash (?:list|show)|worktree list|bisect (?:log|view)|submodule status)" + _END, R),
    has(r"remote(?: (?:-v|show|get-url).*)?$", R),
    has(r"(?:branch|tag)(?: (?:-[alrvn]+\d*|--(?!delete|move|force|set-upstream|edit)\S+))*$", R),
    has(r"(?:branch (?:\S+ )*--(?:contains|merged|no-merged)|tag (?:\S+ )*(?:-l|--list))" + _END, R),
    has(r"config (?:--(?:global|local|system) )?(?:(?:--get|--list|-l|--show|get |list).*|[\w.-]+)$", R),
    first(
        "checkout reset stash apply restore commit revert rebase merge pull switch add clean push clone rm mv"
        " cherry-pick tag config fetch init am branch remote worktree submodule bisect notes gc prune update-index"
        " update-ref filter-branch lfs sparse-checkout read-tree commit-tree",
        W,
    ),
)
_FORGE_VERBS = has(
    "(?:create|edit|merge|comment|close|reopen|delete|review|ready|rerun|cancel|upload|set|fork|clone|checkout|sync"
    "|enable|disable|remove|add|archive|rename|transfer|lock|unlock|develop|run)" + _END,
    W,
)
_put(
    "gh",
    R,
    has(r"run (?:watch|view|list)|pr (?:checks|status)|workflow view", P),
    has(r"api .*(?:-X ?(?!GET)\w|--method[ =](?!GET)|-[fF] |--field|--raw-field|--input)", W),
    first("api browse search status auth version help", R),
    _FORGE_VERBS,
)
_put("glab", R, has("ci (?:status|view|list|get)", P), _FORGE_VERBS)

# Containers, clusters, services, clouds.
_put(
    "docker podman nerdctl docker-compose",
    W,
    first("ps wait", P),
    has(r"compose (?:\S+ )*ps" + _END + r"|logs (?:\S+ )*(?:-f|--follow)" + _END, P),
    first("logs images inspect info version stats top history search port diff config", R),
    has(r"compose (?:\S+ )*(?:logs|config|images|top)" + _END, R),
    first("exec", U),
)
_put(
    "kubectl oc",
    W,
    has(r"(?:-w|--watch)" + _END + r"|logs (?:\S+ )*(?:-f|--follow)" + _END, P),
    has(r"(?:get|wait|rollout status)" + _END, P),
    has(r"(?:describe|logs|top|explain|version|cluster-info|api-resources|diff|events|auth can-i)" + _END, R),
    has(r"(?:rollout history|config (?:view|get\S*|current\S*))" + _END, R),
    has(r"(?:exec|port-forward|proxy|debug)" + _END, U),
)
_put("helm", W, first("status", P), first("list ls get show history search template lint version diff", R))
_put(
    "terraform tofu",
    W,
    first("plan show validate output version graph providers", R),
    has(r"state (?:list|show)|fmt -check", R),
)
_put("systemctl", W, first("status is-active is-enabled is-failed", P), has(r"show|list-|cat\s", R))
_put("service", W, has(r"\S+ status" + _END, P))
_put("supervisorctl", W, first("status", P), first("tail maintail", R))
_put("journalctl", R, has(r"-\w*f" + _END + "|--follow", P))
_put(
    "aws gcloud az gsutil",
    U,
    has("wait" + _END, P),
    has(
        r"(?:create|delete|update|put|run|start|stop|terminate|modify|cp|mv|rm|sync|deploy|set|add|remove)"
        r"(?:-\S+)?" + _END,
        W,
    ),
    has(r"(?:describe|list|get|ls|show|head)(?:-\S+)?" + _END, R),
)

# Packages, builds, tasks.
_put(
    f"pip pip3 apt apt-get apt-cache brew dnf yum apk gem {' '.join(RUNNERS)}",
    W,
    has(r"(?:list|show|search|policy|info|freeze|check|config|index|debug|tree|outdated)" + _END, R),
)
_put(
    "npm yarn pnpm bun",
    U,
    has(r"--(?:fix|write)" + _END + r"|\S+:(?:fix|write)" + _END, W),
    first("test t ls list view outdated why info explain audit config", R),
    has(_TESTS, R),
    has(_BUILDS, W),
    first("i ci add remove uninstall rm update upgrade link init create dedupe prune", W),
)
_TASK_RULES = (
    has(r"-n" + _END + "|--dry-run|--list|--version|help" + _END, R),
    has(_TESTS, R),
    has(_BUILDS, W),
)
_put("mise just task rake gradle gradlew mvn mvnw bazel invoke composer turbo nx", U, *_TASK_RULES)
_put("make gmake", W, *_TASK_RULES[:2])
_put(
    "cargo",
    U,
    has("--fix", W),
    has("--check", R),
    first("test t check c clippy bench tree metadata search run r doc nextest audit version", R),
    first("build b add fmt fix install update clean publish new init remove generate-lockfile", W),
)
_put(
    "go",
    U,
    first("test vet list version env doc run", R),
    first("build get mod generate fmt install clean work", W),
)
_put("dotnet", U, first("test list run", R), first("build add restore publish new format clean remove", W))
