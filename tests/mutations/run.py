#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Damages the library at one place at a time and says which test notices.

    run.py [--sample N] [--seed S] [--jobs N] [--only NAME]... [--source FOLDER] [--folder FOLDER] [--json FILE]
    run.py --anchors

Mutants are those of mutants.toml (a file, a text that occurs once in it, a replacement, and the tests that exercise the
file, the likeliest to notice first), and N generated ones (generate.py; by default 40; the seed decides which). Each worker
has a copy of the sources and a build of its own (in --folder, by default build-mutations; kept for the next run). A mutant
is killed by the first of its tests that fails, crashes or does not end. Tests run as the quick tier runs them, in the
environment that CTest gives them.

A mutant that no test kills survives; an entry may explain why (`survives`). A generated survivor is for a person to read:
it may change nothing that a result depends on (a tile's size, a message), or show that a test is missing. At the end the
tests that killed a mutant run without an error in their way. Exit status 1: a mutant of the list survives without an
explanation or is explained and killed, more than 40 % of at least 20 generated ones survive, or a test fails anyway.
--only: names of the list, or of generated ones (FILE:LINE:COLUMN). --source: the tests and sources of another checkout.
--anchors: nothing is tried; status 1 where a text of the list does not occur once.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib

import generate

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# What python/test.sh made, with the package's module; PyTorch is in the first alone.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "clmgk-test"
PYTHON = next((path for path in (CACHE / "python-full/bin/python", CACHE / "python/bin/python") if path.exists()), None)
HAS_TORCH = PYTHON is not None and any(PYTHON.parent.parent.glob("lib/*/site-packages/torch"))
LIMIT_S = 300  # a test that takes longer does not end
FAILED = "[  FAILED  ] "  # how cmocka begins the line of a test that failed


class Worker:
    """A copy of the sources with a build."""

    def __init__(self, source, folder):
        self.source, self.build, self.cache = folder / "source", folder / "build", folder / "cache"
        self.cache.mkdir(parents=True, exist_ok=True)
        self.copy(source)
        self.make("cmake", "-S", self.source, "-B", self.build, "-G", "Ninja", "-DCLMGK_BUILD_TESTS=ON")
        self.make("cmake", "--build", self.build)
        listed = subprocess.run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], capture_output=True,
                                check=True)
        self.tests = {test["name"]: test for test in json.loads(listed.stdout)["tests"]}
        if PYTHON:
            self.add_python()

    def add_python(self):
        """Adds the files of python/tests, as tests python_NAME of the sources here with the module that was installed."""
        package = self.source / "python"
        for module in PYTHON.parent.parent.glob("lib/*/site-packages/clmgk/_native.abi3.so"):
            shutil.copy(module, package / "clmgk")
        environment = [f"PYTHONPATH={package}", f"CLMGK_CACHE_DIR={self.cache}", "PYTHONDONTWRITEBYTECODE=1",
                       "POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable -DFUNCTION=static"]
        for path in (package / "tests").glob("test_*.py"):
            self.tests[path.stem.replace("test", "python", 1)] = {
                "command": [PYTHON, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", path.name],
                "properties": [{"name": "ENVIRONMENT", "value": environment},
                               {"name": "WORKING_DIRECTORY", "value": path.parent}]}

    def copy(self, source):
        """Only files that differ are written, so that only those are built again."""
        names = subprocess.run(["git", "-C", source, "ls-files", "-z", "-co", "--exclude-standard"],
                               capture_output=True, text=True, check=True).stdout.split("\0")
        names = {name for name in names if name and (source / name).is_file()}
        for path in [path for path in self.source.rglob("*") if path.is_file()]:
            if str(path.relative_to(self.source)) not in names:
                path.unlink()
        for name in names:
            target = self.source / name
            content = (source / name).read_bytes()
            if not target.is_file() or target.read_bytes() != content:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source / name, target)

    def make(self, *command):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{command[1]}: {done.stdout[-2000:]}")

    def run(self, name):
        """None: the test passed. Otherwise how it noticed."""
        test = self.tests[name]
        environment = {**os.environ, "POCL_CACHE_DIR": str(self.cache)}
        for item in test.get("properties", []):
            if item["name"] == "ENVIRONMENT":
                environment.update(text.split("=", 1) for text in item["value"])
            if item["name"] == "WORKING_DIRECTORY":
                folder = item["value"]
        with tempfile.TemporaryDirectory() as temporary:
            os.chmod(temporary, 0o755)  # some tests run programs as another user
            environment["TMPDIR"] = temporary
            process = subprocess.Popen(test["command"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                       errors="replace", env=environment, cwd=folder, start_new_session=True)
            timer = threading.Timer(LIMIT_S, os.killpg, (process.pid, signal.SIGKILL))
            timer.start()
            try:
                how = self.watch(process)
            finally:
                ended = timer.is_alive()
                timer.cancel()
                try:
                    os.killpg(process.pid, signal.SIGKILL)  # the rest of the test, and what it started
                except ProcessLookupError:
                    pass
                process.wait()
        return how if ended else "does not end"

    @staticmethod
    def watch(process):
        """Reads until the end, or until cmocka says that a test failed, or a random problem did (it is made smaller)."""
        last = ""
        for line in process.stdout:
            if line.startswith(FAILED):
                return line[len(FAILED):].strip()
            if line.startswith("--seed ") and line.endswith(": failed\n"):
                return line.rsplit(":", 1)[0]
            if line.startswith(("FAIL: ", "ERROR: ")):  # unittest
                last = line.split()[1]
        status = process.wait()
        return None if status == 0 else last or (f"signal {-status}" if status < 0 else f"status {status}")


def damaged(text, mutant):
    if "line" in mutant:
        lines = text.split("\n")
        lines[mutant["line"] - 1] = mutant["new"]
        return "\n".join(lines)
    if text.count(mutant["old"]) != 1 or mutant["old"] == mutant["new"]:
        raise RuntimeError(f"{mutant['name']}: the text occurs {text.count(mutant['old'])} times in {mutant['file']}")
    return text.replace(mutant["old"], mutant["new"])


def try_mutant(worker, mutant):
    """The test that kills it and how; (None, None) if it survives."""
    path = worker.source / mutant["file"]
    text = path.read_text()
    path.write_text(damaged(text, mutant))
    try:
        try:
            worker.make("cmake", "--build", worker.build)
        except RuntimeError:
            if "line" not in mutant:
                raise
            return "compiler", "does not build"
        for name in mutant["tests"]:
            how = worker.run(name) if name in worker.tests else None
            if how is not None:
                return name, how
        return None, None
    finally:
        path.write_text(text)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=40, metavar="N")
    parser.add_argument("--seed", type=int, default=1, metavar="S")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", action="append", metavar="NAME")
    parser.add_argument("--anchors", action="store_true")
    parser.add_argument("--source", type=pathlib.Path, default=ROOT)
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build-mutations")
    parser.add_argument("--json", type=pathlib.Path)
    return parser.parse_args()


def check_anchors(mutants, source):
    """Whether each mutant changes its file."""
    good = True
    for mutant in mutants:
        try:
            damaged((source / mutant["file"]).read_text(), mutant)
        except (OSError, RuntimeError) as failure:
            print(failure)
            good = False
    return good


def can_run(mutant):
    """Whether this machine has what the mutant's tests need: the Python package's environment, or an instruction set of the
    CPU (a flag of /proc/cpuinfo), and not the one that it must lack."""
    if mutant["file"].startswith("python/clmgk/torch/"):
        return HAS_TORCH
    if mutant["file"].startswith("python/"):
        return PYTHON is not None
    info = pathlib.Path("/proc/cpuinfo")
    flags = info.read_text().split() if info.exists() else []
    return mutant.get("needs") in (None, *flags) and mutant.get("lacks") not in flags


def main():
    arguments = parse()
    listed = tomllib.loads((HERE / "mutants.toml").read_text())
    good = check_anchors(listed["mutant"], arguments.source)
    if arguments.anchors or not good:
        return 0 if good else 1
    mutants = [mutant for mutant in listed["mutant"] if can_run(mutant)]
    mutants += generate.sample(arguments.source, listed["area"], arguments.sample, arguments.seed)
    if arguments.only:
        mutants = [mutant for mutant in mutants if mutant["name"] in arguments.only]
    folders = [arguments.folder.resolve() / str(n) for n in range(arguments.jobs)]
    workers = queue.SimpleQueue()
    for folder in folders:  # each build takes all cores
        workers.put(Worker(arguments.source.resolve(), folder))
    results = []
    lock = threading.Lock()

    def judge(mutant):
        start = time.monotonic()
        worker = workers.get()
        try:
            test, how = try_mutant(worker, mutant)
        finally:
            workers.put(worker)
        bad = "line" not in mutant and (test is None) != ("survives" in mutant)
        with lock:
            results.append({"name": mutant["name"], "generated": "line" in mutant, "file": mutant["file"], "what": mutant["what"], "killed_by": test,
                            "how": how, "survives": mutant.get("survives"), "bad": bad})
            outcome = f"{test}: {how}" if test else mutant.get("survives", "SURVIVES")
            print(f"{len(results):3}/{len(mutants)}  {time.monotonic() - start:5.0f} s  "
                  f"{mutant['name']:<44} {'!! ' if bad else ''}{outcome}", flush=True)
            if test is None and "line" in mutant:
                print(f"      {mutant['what']}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for done in [pool.submit(judge, mutant) for mutant in mutants]:
            done.result()
    def passes(name):
        worker = workers.get()
        try:
            worker.make("cmake", "--build", worker.build)
            return worker.run(name) is None
        finally:
            workers.put(worker)

    killers = sorted({result["killed_by"] for result in results} - {None, "compiler"})
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        failing = [name for name, good in zip(killers, pool.map(passes, killers)) if not good]
    if arguments.json:
        arguments.json.write_text(json.dumps(sorted(results, key=lambda result: result["name"]), indent=1) + "\n")
    killed = sum(result["killed_by"] is not None for result in results)
    bad = [result["name"] for result in results if result["bad"]]
    print(f"{len(results)} mutants, {killed} killed", *bad)
    generated = [result for result in results if result["generated"] and result["killed_by"] != "compiler"]
    survivors = sum(result["killed_by"] is None for result in generated)
    print(f"{len(generated)} generated, {survivors} survive")
    if failing:
        print("fail without an error:", *failing)
    return 1 if bad or failing or (len(generated) >= 20 and survivors > 0.4 * len(generated)) else 0


if __name__ == "__main__":
    sys.exit(main())
