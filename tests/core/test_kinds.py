"""What a command line, a statement or a table says about a call."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopguard.commands import COMMANDS
from loopguard.kinds import kind_of, shell_kind, sql_kind
from loopguard.records import Kind

READS = r"""
ls -la src
cargo test -q parser
git status --short
git -C sub log --oneline -5
git branch -a | head
git stash list
git config user.name
grep "->" notes.txt
awk '$5 > 10' table
cat a 2>/dev/null
cat a 2>&1 | head
ls > /dev/null
find . -name '*.py' -exec grep -n x {} +
ls | xargs -n 1 grep x
sed -n 1,20p a.py
tail -20 log
tar -tzf a.tgz
make check && make check
make -n
npm test -- flaky.spec
npx tsc --noEmit
uv run --with httpx pytest -q
poetry run python -m pytest
timeout 30 ./gradlew test --tests Cart
env A=1 B=2 pytest
sudo -u root ls
python solution.py
python -c "print(open('a').read())"
bash run_tests.sh
bash -c "ls; pwd"
./build_docs.sh
psql -c 'select 1'
gh api repos/x/y --paginate
docker logs web
kubectl -n shop describe pod web
curl -s localhost:8080/health
curl -o /dev/null -s http://x
aws s3 ls
diff <(ls a) <(ls b)
for f in *; do cat $f; done
x=$(cat f); echo $x
[[ $a > $b ]] && ls
(( a > b )) && ls
# don't rm this
ls # rm x
cat < input
echo "a # b" | wc -l
ls \; rm
cd "$(dirname "$(which python)")"
echo `date`
"""

WRITES = r"""
git push origin main
git commit -m 'a > b'
git branch new
git config user.name bob
echo x=1 > /etc/demo.conf
echo x >> log
make_report &> log
tee /etc/demo.conf
cp a b
pip install tablib
python -m pip install tablib
python manage.py migrate
python3 setup.py install
uv pip install x
ruff check --fix a.py
ruff format m.py
black a.py
sed -i s/a/b/ f
sed -ni p f
perl -pi -e s/a/b/ f
find . -name '*.pyc' -delete
find . -exec sed -i 's/a/b/' {} \;
find . -exec grep x {} \; -exec rm {} \;
ls | xargs -n 1 rm
ls | xargs -I '{}' rm '{}'
tar -xzf a.tgz
tar -zxvf a.tgz --strip-components=1
bash -c 'rm -rf x'
python -c "open('a', 'w').write('x')"
psql -c "delete from users"
npm run build
npm run lint:fix
cargo build
make part_1
gh pr create --title x
gh api -X POST z
docker compose up -d
kubectl -n x apply -f y
curl -X POST http://x -d @f
curl -O http://x
wget http://x/f
systemctl restart web
if [ -f x ]; then rm x; fi
sleep 5; rm lock
echo "$(rm x)"
echo hi \
"""

POLLS = r"""
sleep 5
sleep 30 && cat out.log
while true; do sleep 1; done
wait
tail -f log
timeout 60 tail -f log
watch ls
gh run view 812 --json status
gh pr checks
kubectl get pods -n shop
kubectl rollout status deploy/web
docker ps
docker compose ps
systemctl status web
"""

UNKNOWNS = r"""
print-env --all
align sample_1.fq
git frobnicate
docker exec web ls
psql mydb
x > /dev/null
find . -exec
"""


def lines(text: str) -> list[str]:
    """The lines that say something."""
    return [line for line in text.splitlines() if line]


@pytest.mark.parametrize("line", lines(READS))
def test_a_line_that_only_looks_or_runs_is_a_read(line: str) -> None:
    """Looking, running tests and running scripts change nothing that the agent works on."""
    assert shell_kind(line) == Kind.READ


@pytest.mark.parametrize("line", [line for line in lines(WRITES) if not line.endswith("\\")])
def test_a_line_that_changes_something_is_a_write(line: str) -> None:
    """One changing command, redirection or option is enough."""
    assert shell_kind(line) == Kind.WRITE


@pytest.mark.parametrize("line", ["", "  \n", *lines(POLLS)])
def test_a_line_that_waits_or_asks_for_news_is_a_poll(line: str) -> None:
    """Sleeping, following and asking for a status are waiting; so is an empty line to a running program."""
    assert shell_kind(line) == Kind.POLL


@pytest.mark.parametrize("line", lines(UNKNOWNS))
def test_what_is_not_in_the_table_stays_unknown(line: str) -> None:
    """An unknown program is never taken for a read."""
    assert shell_kind(line) == Kind.UNKNOWN


@pytest.mark.parametrize(
    ("expected", "line"),
    [
        (Kind.WRITE, "cat > f <<'EOF'\nls\nEOF"),
        (Kind.READ, "cat <<EOF | grep x\nrm x > y\nEOF"),
        (Kind.WRITE, "python - <<EOF\nopen('a', 'w').write('x')\nEOF"),
        (Kind.READ, "python - <<EOF\nprint(1)\nEOF"),
        (Kind.WRITE, "bash <<EOF\nrm x\nEOF"),
        (Kind.WRITE, "psql <<SQL\nupdate t set a = 1;\nSQL\n"),
        (Kind.WRITE, "cat <<EOF\na\nEOF\nrm x"),
        (Kind.READ, "echo $((1<<N))"),
        (Kind.READ, "```bash\nls\n```"),
        (Kind.WRITE, "echo hi \\\n  > f"),
    ],
)
def test_here_documents_fences_and_continued_lines(expected: Kind, line: str) -> None:
    """A here-document counts only for the interpreter that reads it."""
    assert expected == shell_kind(line)


def test_an_argument_vector_is_read_like_a_line() -> None:
    """Agents that pass lists wrap the line in a shell, or give the words."""
    assert shell_kind(["bash", "-lc", "rm x"]) == Kind.WRITE
    assert shell_kind(("rm", "a file")) == Kind.WRITE
    assert shell_kind(["echo", "a > b"]) == Kind.READ
    assert shell_kind({"command": "ls"}) == Kind.UNKNOWN


def test_nested_shells_are_followed_only_so_far() -> None:
    """What is wrapped too often is unknown, never a crash."""
    line = "rm x"
    for end in "ABCDE":
        line = f"bash <<{end}\n{line}\n{end}"

    assert shell_kind(line) == Kind.UNKNOWN
    assert shell_kind("find . -exec " * 5 + "rm") == Kind.WRITE
    assert shell_kind("echo $(echo $(echo $(echo $(echo a))))") == Kind.READ


@given(st.text(alphabet="ab '\"\\$()[]<>|&;`#{}-\n=EOF\x01", max_size=80))
def test_any_text_has_a_kind(line: str) -> None:
    """Nothing a model writes makes the reading raise."""
    assert isinstance(shell_kind(line), Kind)
    assert isinstance(sql_kind(line), Kind)


@pytest.mark.parametrize("program", sorted(COMMANDS))
def test_every_program_of_the_table_can_be_read(program: str) -> None:
    """The patterns of the table are regular expressions."""
    assert isinstance(shell_kind(f"{program} -x y"), Kind)


@pytest.mark.parametrize(
    "part", ["$(", "[[", "a > ", "'\"", "/*", "<<A\n", "git -C ", "npm a-", "find . -exec ", "-exec bash -c "]
)
def test_long_hostile_lines_are_judged_quickly(part: str) -> None:
    """The time grows with the length only, and the length that is looked at is bounded."""
    started = time.process_time()
    shell_kind(part * 100_000)
    sql_kind(part * 100_000)

    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("expected", "statement"),
    [
        (Kind.READ, "SELECT * FROM t WHERE a = 'delete from x'"),
        (Kind.READ, "(select 1)"),
        (Kind.READ, "-- drop table t\nshow tables"),
        (Kind.READ, "with a as (select 1) select * from a"),
        (Kind.READ, "explain delete from t"),
        (Kind.READ, "pragma table_info(t)"),
        (Kind.READ, "copy t to stdout"),
        (Kind.READ, "begin; select 1; commit"),
        (Kind.WRITE, "INSERT INTO t VALUES (1)"),
        (Kind.WRITE, "select 1; drop table t"),
        (Kind.WRITE, "select * into new from t"),
        (Kind.WRITE, "with a as (select 1) delete from t using a"),
        (Kind.WRITE, "explain analyze update t set a = 1"),
        (Kind.WRITE, "pragma journal_mode = wal"),
        (Kind.WRITE, "copy t from stdin"),
        (Kind.UNKNOWN, "call refresh_everything()"),
        (Kind.UNKNOWN, "begin"),
        (Kind.UNKNOWN, ""),
        (Kind.UNKNOWN, None),
    ],
)
def test_a_statement_is_judged_by_its_first_word(expected: Kind, statement: object) -> None:
    """Comments and quoted text do not count; of several statements the hardest does."""
    assert expected == sql_kind(statement)


def test_a_declared_kind_holds_whatever_the_arguments() -> None:
    """Kinds and their names stand for themselves, None and nonsense for unknown."""
    assert kind_of(Kind.READ, {}) == Kind.READ
    assert kind_of("poll", {}) == Kind.POLL
    assert kind_of(None, {}) == Kind.UNKNOWN
    assert kind_of("nonsense", {}) == Kind.UNKNOWN


def test_the_line_is_found_among_the_arguments() -> None:
    """The primary argument first, then the usual names, then the only text."""
    assert kind_of("shell", {"line": "rm x", "command": "ls"}, "line") == Kind.WRITE
    assert kind_of("shell", {"cmd": "ls", "note": "rm x"}, "line") == Kind.READ
    assert kind_of("sql", {"text": "drop table t", "limit": 1}) == Kind.WRITE
    assert kind_of("shell", {"a": "ls", "b": "rm"}) == Kind.UNKNOWN
    assert kind_of("shell", {"command": "", "is_input": True}) == Kind.POLL


def test_a_table_decides_by_the_value_of_an_argument() -> None:
    """`*` stands for every other value; without it they are unknown."""
    table: dict[str, str | Kind] = {"by": "command", "view": "read", "undo": Kind.SAMPLE, "*": "write"}

    assert kind_of(table, {"command": "view"}) == Kind.READ
    assert kind_of(table, {"command": "undo"}) == Kind.SAMPLE
    assert kind_of(table, {}) == Kind.WRITE
    assert kind_of({"by": "command", "view": "read"}, {"command": "create"}) == Kind.UNKNOWN


def test_a_function_decides_and_may_fail() -> None:
    """It may return a kind, a name, or None; what it raises means unknown."""
    assert kind_of(lambda a: "write" if a["force"] else "read", {"force": True}) == Kind.WRITE
    assert kind_of(lambda a: Kind.READ, {}) == Kind.READ
    assert kind_of(lambda a: None, {}) == Kind.UNKNOWN
    assert kind_of(lambda a: a["missing"], {}) == Kind.UNKNOWN
