"""Mutants of cargo-mutants, all in one build, each behind a switch: what its tests are, not how long it takes to compile.

    mutants/switched.py revd-engine|revd-member K/N [PASS...]    every Nth mutant from the Kth on; passes: unit quick all

The list is that of `cargo mutants --list`; a copy of the tree gets `if on(7) { a - b } else { a + b }` for the 7th of it, and
is built once: `REVD_SWITCHED=7` turns the mutant on in a run. Mutants that the compiler refuses are taken out one after the
other. A first run of each test program notes which mutants it reaches at all; only those are tried with it. A test that takes
five times the processor time that it takes without a mutant, and half a second, is ended: that is told apart from what a test has found.

Results are in target/mutants/switched/PACKAGE-K-N: results.jsonl (it goes on where it was ended) and the lists that are printed.
Needs `cargo install cargo-mutants --locked` and `pip install tree-sitter tree-sitter-rust`.
"""

import collections
import itertools
import json
import math
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import tree_sitter
import tree_sitter_rust

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {"revd-engine": "engine/src", "revd-member": "server/member/src"}
# As in sample.sh.
QUICK = {
    "revd-engine": "scripts tree_model index_model transfer bugs hash_kv readers damage",
    "revd-member": "scripts core_scripts cluster_scripts start_scripts raft_scripts lease_scripts watch_scripts watch_steps"
    " log_damage range_model",
}
# The tables of planted mutants are no code that serves.
LEFT_OUT = "mutants::is"
# A test program that waits so long without using the processor hangs.
IDLE_SECONDS = 300
# Tests are tried by the time that they take: all that take less, then those between two of these, then the others.
STEPS_SECONDS = [0.02, 0.1, 1.0, 10.0, math.inf]
# Tests that take longer are left out, and of the others of a program those are run that take no longer together.
TEST_SECONDS_MAX, PROGRAM_SECONDS_MAX = 30, 60
SWITCH = """
#[allow(missing_docs, unreachable_pub, dead_code)]
pub mod switched {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};
    static ON: OnceLock<u32> = OnceLock::new();
    static REACHED: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];
    #[inline]
    pub fn on(number: u32) -> bool {
        let on = *ON.get_or_init(|| match std::env::var("REVD_SWITCHED") {
            Ok(number) => number.parse().expect("a number"),
            Err(_) => if std::env::var_os("REVD_REACHED").is_some() { u32::MAX } else { u32::MAX - 1 },
        });
        if on == u32::MAX && !REACHED[number as usize].swap(true, Ordering::Relaxed) {
            use std::io::Write;
            let path = std::env::var_os("REVD_REACHED").expect("a path");
            let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
            file.expect("a file").write_all(format!("{number}\\n").as_bytes()).expect("a line");
        }
        on == number
    }
}
"""
CONSTANT = {"const_item", "static_item", "const_block", "array_type", "enum_variant", "type_arguments", "const_parameter"}
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
sys.setrecursionlimit(20_000)


def is_constant(node):
    """The compiler runs it: there is no switch there."""
    while node is not None and node.type != "function_item":
        if node.type in CONSTANT:
            return True
        node = node.parent
    modifiers = [child.text.split() for child in node.children if child.type == "function_modifiers"] if node else []
    return any(b"const" in words for words in modifiers)


class Source:
    """A file, and which mutants are made of which parts of it."""

    def __init__(self, path):
        self.bytes = path.read_bytes()
        self.lines = self.bytes.split(b"\n")
        self.root = PARSER.parse(self.bytes).root_node
        self.mutants = {}  # by the part that is changed
        self.changed = set()  # these parts, and all around them

    def around(self, at, kinds):
        """The parts of these kinds that hold a byte, from the outermost to the innermost."""
        node, found = self.root, []
        while node is not None:
            if node.type in kinds:
                found.append(node)
            node = next((child for child in node.children if child.start_byte <= at < child.end_byte), None)
        return found

    def part(self, mutant):
        """The part that it changes, or why there is no switch for it."""
        begin = mutant["span"]["start"]
        before = self.lines[begin["line"] - 1].decode()[: begin["column"] - 1]
        at = sum(len(line) + 1 for line in self.lines[: begin["line"] - 1]) + len(before.encode())
        genre = mutant["genre"]
        if genre == "FnValue":
            parts = self.around(at, {"function_item"})
            parts = [part.child_by_field_name("body") for part in parts]
        elif genre == "BinaryOperator":
            parts = self.around(at, {"binary_expression", "compound_assignment_expr", "let_chain"})
            parts = [part for part in parts if any(child.start_byte == at and not child.is_named for child in part.children)]
        elif genre == "UnaryOperator":
            parts = [part for part in self.around(at, {"unary_expression"}) if part.start_byte == at]
        elif genre in ("MatchArm", "MatchArmGuard"):
            parts = self.around(at, {"match_arm"})
        else:
            return genre
        if not parts:
            return "not found"
        part = parts[-1]
        if part.type == "let_chain":
            return "operator between bindings"
        if part.type == "match_arm" and b"let " in (guard(part).text if guard(part) else b""):
            return "guard that binds"
        return "constant" if is_constant(part) else part

    def plant(self, number, mutant):
        """Says why not, if it cannot."""
        part = self.part(mutant)
        if isinstance(part, str):
            return part
        self.mutants.setdefault(part.id, []).append((number, mutant))
        while part is not None:
            self.changed.add(part.id)
            part = part.parent
        return None

    def plain(self, node):
        return self.bytes[node.start_byte : node.end_byte].decode()

    def text(self, node):
        """The part with all of its switches."""
        if node.id not in self.changed:
            return self.plain(node)
        within = self.joined(node.start_byte, node.children, node.end_byte)
        mutants = self.mutants.get(node.id)
        if mutants is None:
            return within
        if node.type == "block":
            texts = (marked(number, f"if {on(number)} {{ return {mutant['replacement']}; }}") for number, mutant in mutants)
            return "{" + "".join(texts) + within.removeprefix("{")
        if node.type == "match_arm":
            return self.arm(node, mutants)
        if node.type == "unary_expression":
            others = [(number, self.plain(node.children[1])) for number, _ in mutants]
        else:
            left, right = node.child_by_field_name("left"), self.plain(node.child_by_field_name("right"))
            is_cast = left.type == "type_cast_expression"  # what follows may look like the type's own arguments
            left = f"({self.plain(left)})" if is_cast else self.plain(left)
            others = [(number, f"{left} {mutant['replacement']} {right}") for number, mutant in mutants]
        texts = (marked(number, f"if {on(number)} {{ ({text}) }} else ") for number, text in others)
        return "(" + "".join(texts) + "{ (" + within + ") })"

    def arm(self, node, mutants):
        """An arm that is missing is one whose guard refuses."""
        pattern, condition = node.child_by_field_name("pattern"), guard(node)
        end = next(child.start_byte for child in pattern.children if child.type == "if") if condition else pattern.end_byte
        text = f"({self.text(condition)})" if condition else "true"
        for number, mutant in mutants:
            is_passed = mutant["genre"] == "MatchArmGuard" and mutant["replacement"] == "true"
            text = "(" + marked(number, f"{on(number)} ||" if is_passed else f"!{on(number)} &&") + f" {text})"
        rest = [child for child in node.children if child.start_byte >= pattern.end_byte]
        head = self.bytes[node.start_byte : end].decode()
        return f"{head} if {text} " + self.joined(pattern.end_byte, rest, node.end_byte)

    def joined(self, begin, children, end):
        texts = []
        for child in children:
            texts += [self.bytes[begin : child.start_byte].decode(), self.text(child)]
            begin = child.end_byte
        return "".join(texts) + self.bytes[begin:end].decode()


def guard(arm):
    return arm.child_by_field_name("pattern").child_by_field_name("condition")


def on(number):
    return f"crate::switched::on({number})"


def marked(number, text):
    """Errors of the compiler name places: the marks say of which mutant."""
    return f"/*<{number}*/{text}/*{number}>*/"


class Run:
    def __init__(self, package, share, folder=None):
        self.package, self.share = package, [int(number) for number in share.split("/")]
        self.folder = folder or ROOT / "target/mutants/switched" / "-".join([package, *share.split("/")])
        self.tree = self.folder / "tree"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results = self.folder / "results.jsonl"

    def kept(self, name, make):
        """What a run before this one has found out."""
        path = self.folder / name
        if not path.exists():
            value = make()
            path.write_text(json.dumps(value, indent=0))
        return json.loads(path.read_text())

    def cargo(self, *words):
        # Not that of another tree: cargo would take what was built there for its own.
        environment = dict(os.environ, CARGO_TARGET_DIR=str(self.folder / "target"))
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command = subprocess.run(["cargo", *words], cwd=self.tree, env=environment, **pipes)
        return command, [json.loads(line) for line in command.stdout.splitlines() if line.startswith("{")]

    def list(self):
        command = ["cargo", "mutants", "--package", self.package, "--list", "--json"]
        mutants = json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True).stdout)
        return [mutant for mutant in mutants if LEFT_OUT not in mutant["name"]]

    def plant(self, refused):
        """Writes the tree; the mutants that have no switch."""
        files, without = {}, {}
        for number in self.sample:
            mutant = self.mutants[number]
            if str(number) not in refused:
                name = mutant["file"]
                if name not in files:
                    files[name] = Source(ROOT / name)
                why = files[name].plant(number, mutant)
                if why is not None:
                    without[number] = why
        for name in sorted({mutant["file"] for mutant in self.mutants}):
            text = files[name].text(files[name].root) if name in files else (ROOT / name).read_text()
            (self.tree / name).write_text(text)
        lib = SOURCES[self.package] + "/lib.rs"
        text = (self.tree / lib if lib in files else ROOT / lib).read_text()
        (self.tree / lib).write_text(text + SWITCH.replace("COUNT", str(len(self.mutants))))
        return without

    def planted(self):
        """Builds until the compiler refuses nothing; what it has refused, and what has no switch."""
        list_files = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        tracked = subprocess.run(list_files, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        copy = ["rsync", "-a", "--files-from=-", f"{ROOT}/", f"{self.tree}/"]
        subprocess.run(copy, input=tracked, check=True)
        refused = {}
        while True:
            without = self.plant(refused)
            _, messages = self.cargo("check", "-p", self.package, "--lib", "--message-format=json")
            errors = [said["message"] for said in messages if said.get("reason") == "compiler-message"]
            errors = [error for error in errors if error["level"] == "error" and error["spans"]]
            blamed = {str(number): error["message"] for error in errors for number in self.blamed(error)}
            print(f"{len(errors)} errors, {len(blamed)} mutants are refused", flush=True)
            if errors and not blamed:
                sys.exit(errors[0]["rendered"])
            if not errors:
                return {"refused": refused, "without": without}
            refused |= blamed

    def blamed(self, error):
        """The mutants around the place of an error; else the one next to it."""
        near = []
        for span in sorted(error["spans"], key=lambda span: not span["is_primary"]):
            path = self.tree / span["file_name"]
            text = path.read_bytes().decode("latin1") if path.exists() else ""
            marks = re.finditer(r"/\*<(\d+)\*/", text)
            places = [(mark[1], mark.start(), text.index(f"/*{mark[1]}>*/", mark.end())) for mark in marks]
            around = [(end - begin, number) for number, begin, end in places if begin <= span["byte_start"] < end]
            if around:
                return [min(around)[1]]
            within = [n for n, begin, end in places if span["byte_start"] <= begin and end <= span["byte_end"]]
            near += [(0, number) for number in within]
            near += [(min(abs(span["byte_start"] - end), abs(begin - span["byte_end"])), n) for n, begin, end in places]
        least = min((distance for distance, _ in near), default=None)
        return [number for distance, number in near if distance == least]

    def built(self, targets):
        """Test programs by their names, and the folders that they run in."""
        command, messages = self.cargo("test", "-p", self.package, "--no-run", "--message-format=json", *targets)
        if command.returncode:
            sys.exit(command.stderr)
        found = {}
        for said in messages:
            if said.get("executable") and said["profile"]["test"]:
                name = "lib" if "lib" in said["target"]["kind"] else said["target"]["name"]
                found[name] = [said["executable"], str(pathlib.Path(said["manifest_path"]).parent)]
        return found

    def tests(self, name, variables, seconds, filters=()):
        """Runs tests of a program until one fails: what became of it, and how long it took."""
        path, folder = self.programs[name]
        said, temporary = self.folder / "said.txt", self.folder / "tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()

        def bounded():
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (6 << 30, 6 << 30))

        environment = dict(os.environ, RUST_BACKTRACE="0", TMPDIR=str(temporary), CARGO_MANIFEST_DIR=folder, **variables)
        command, before = [path, "--exact", *filters], children_seconds()
        with said.open("wb") as out:
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out, preexec_fn=bounded)
        used, idle_since, verdict, began = 0.0, time.time(), None, time.time()
        while verdict is None:
            is_over = process.poll() is not None
            now = processor_seconds(process.pid)
            if now > used:
                used, idle_since = now, time.time()
            failed = re.search(rb"^test (\S+)(?: - should panic)? \.\.\. FAILED", said.read_bytes(), re.M)
            if failed:
                verdict = "failed: " + failed[1].decode()
            elif is_over and process.returncode == 0:
                verdict = "passed"
            elif is_over:
                verdict = f"failed: ended with {process.returncode}"
            elif used > seconds:
                verdict = "late"
            elif time.time() - idle_since > IDLE_SECONDS:
                verdict = "late: hangs"
            time.sleep(0.03)
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        return verdict, children_seconds() - before, time.time() - began

    def reached(self, name):
        """The mutants that each test of a program reaches, and how long it takes without one."""
        path, tests = self.folder / "reached.txt", []
        listed = subprocess.run([self.programs[name][0], "--list", "--format=terse"], stdout=subprocess.PIPE, check=True, text=True)
        for test in (line.removesuffix(": test") for line in listed.stdout.splitlines()):
            path.unlink(missing_ok=True)
            verdict, used, _ = self.tests(name, {"REVD_REACHED": str(path)}, TEST_SECONDS_MAX, [test])
            if verdict != "passed":
                print(f"{test} of {name} is left out, without a mutant it is {verdict}", flush=True)
                continue
            numbers = sorted(int(line) for line in path.read_text().split()) if path.exists() else []
            tests.append({"test": test, "seconds": used, "numbers": numbers})
        all_reached = {number for test in tests for number in test["numbers"]}
        print(f"{name}: {sum(test['seconds'] for test in tests):.1f} s, reaches {len(all_reached)}", flush=True)
        return tests

    def known(self):
        """Verdicts by mutant and program."""
        known = collections.defaultdict(dict)
        for line in self.results.read_text().splitlines() if self.results.exists() else []:
            result = json.loads(line)
            known[result["number"]][result["program"]] = result["verdict"]
        return known

    def try_one(self, number, name, least, most):
        known = self.known()[number]
        part = f"{name}, tests of {least} to {most} s"
        tests = self.kept(f"reached-{name}.json", lambda: self.reached(name))
        tests = [test for test in tests if number in test["numbers"] and least <= test["seconds"] < most]
        if not tests or part in known or any(verdict != "passed" for verdict in known.values()):
            return
        tests.sort(key=lambda test: test["seconds"])
        sums = itertools.accumulate(test["seconds"] for test in tests)
        tests = [test for test, all_seconds in zip(tests, sums) if all_seconds <= PROGRAM_SECONDS_MAX]
        limit = sum(test["seconds"] for test in tests) * 5 + 0.5
        filters = [test["test"] for test in tests]
        verdict, used, took = self.tests(name, {"REVD_SWITCHED": str(number)}, limit, filters)
        result = {"number": number, "program": part, "verdict": verdict, "used": round(used, 2), "took": round(took, 1)}
        with self.results.open("a") as out:
            out.write(json.dumps(result) + "\n")

    def report(self, state):
        known, counts, lines = self.known(), collections.Counter(), []
        for number in self.sample:
            verdicts = known[number].values()
            last = next((verdict for verdict in verdicts if verdict != "passed"), None)
            if str(number) in state["refused"]:
                kind = "refused by the compiler"
            elif str(number) in state["without"]:
                kind = "without a switch"
            else:
                kind = "survives" if last is None else last.split(":")[0]
            counts[kind] += 1
            said = last or " ".join(known[number]) or "not reached"
            lines.append(f"{kind}\t{number}\t{self.mutants[number]['name']}\t{said}")
        (self.folder / "report.txt").write_text("\n".join(sorted(lines)) + "\n")
        print(dict(counts), flush=True)

    def everything(self, passes):
        self.mutants = self.kept("mutants.json", self.list)
        first, step = self.share
        self.sample = list(range(first, len(self.mutants), step))
        state = self.kept("planted.json", self.planted)
        quick = QUICK[self.package].split()
        targets = {"unit": ["--lib"], "quick": [f"--test={name}" for name in quick], "all": ["--tests"]}
        self.programs = {}
        for one in passes:
            self.programs |= self.kept(f"programs-{one}.json", lambda: self.built(targets[one]))
            names = {"unit": ["lib"], "quick": quick, "all": sorted(self.programs)}[one]
            for least, most in zip([0.0, *STEPS_SECONDS], STEPS_SECONDS):
                for name in names:
                    for number in self.sample:
                        self.try_one(number, name, least, most)
                self.report(state)


def processor_seconds(pid):
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def children_seconds():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in SOURCES:
        sys.exit(__doc__)
    Run(sys.argv[1], sys.argv[2]).everything(sys.argv[3:] or ["unit", "quick", "all"])
