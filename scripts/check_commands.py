#!/usr/bin/env python3
"""Runs the commands in the documentation, so that a page cannot show a command that does not work.

    python3 scripts/check_commands.py [--build DIRECTORY] [--list] [--only TEXT] [--keep] [PAGE...]

Takes the shell blocks and the inline commands of README.md, docs/, examples/ and the other pages, and runs each as it is
written, in a copy of the repository with a home directory, a service and a simulated device of its own. `python serve.py`
and `python train.py` run the small programs in scripts/doc_programs. `cargo` uses the working tree's build products;
without CI=true a release build is replaced by the debug build that the tests have made.

A command that cannot run without a GPU, root, a container engine or hours of time needs a line in scripts/doc_commands.txt,
which says why. --list shows every command and what is done with it.
"""

import argparse
import fnmatch
import glob
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CLASSES = os.path.join(ROOT, "scripts", "doc_commands.txt")
PAGES = ["README.md", "CONTRIBUTING.md", "bench/README.md", "python/README.md", "docs/*.md", "examples/**/*.md"]
SHELL_LANGUAGES = {"", "sh", "bash", "shell", "console"}
# Programs whose commands in the text are run. A command of another program needs a line in doc_commands.txt.
OWN = {"xsched", "xserver", "xcli", "make", "pip", "cargo", "python", "python3", "curl"}
SHELL_WORDS = {"cd", "export", "cc", "ln", "for", "mkdir", "echo"}
OTHER = {"sudo", "docker", "podman", "kubectl", "systemctl", "git", "dpkg", "apt", "apt-get", "rustup", "bash", "helm", "srun"}
# Words that stand for something of the reader's.
PLACEHOLDER = r"(?:^|[\s=:])((?:PID|FILE|NAME|DIR|DIRECTORY|PROGRAM|COMMAND|CRATE|ADDR|PORT|POLICY|PATH/TO/\S+)(?:\.\w+)?)(?=\s|$)"
SERVICE = r"xsched serve|xserver"
# `xcli` uses this port unless it is given another.
XCLI_PORT = 50000
COMMAND_TIMEOUT_S = 60
SERVICE_START_TIMEOUT_S = 20
SCREEN_S = 2


class Command:
    """One command of a page."""

    def __init__(self, page, line, text, inline=False):
        self.page, self.line, self.text, self.inline = page, line, text, inline

    def __str__(self):
        return f"{self.page}:{self.line}: {self.text}"


def program_of(text):
    """The program of a command line, without assignments and sudo."""
    words = re.sub(r"^(?:\w+=\S*\s+)*(?:sudo\s+)?", "", text).split()
    if not words:
        return "export" if re.match(r"\w+=", text) else ""
    return words[0]


def is_command(text):
    program = program_of(text)
    if program.startswith("examples/"):
        return os.access(os.path.join(ROOT, program), os.X_OK) and os.path.isfile(os.path.join(ROOT, program))
    return program in OWN | SHELL_WORDS | OTHER or program.startswith(("./", "scripts/", "packaging/"))


def logical_lines(block):
    """The commands of a shell block: without prompts and comments, continued lines joined."""
    joined, start = "", 0
    for number, line in enumerate(block.splitlines()):
        line = re.sub(r"(^|\s)#.*$", "", re.sub(r"^\s*(?:\w+\$|\$)\s+", "", line)).rstrip()
        start = start if joined else number
        if line.endswith("\\"):
            joined += line[:-1].rstrip() + " "
            continue
        text = (joined + line.strip()).strip() if joined else line.rstrip()
        joined = ""
        if text.strip():
            yield start, text


def blocks_of(page, text):
    """The shell blocks and the inline commands of a page, each a list of commands."""
    rest = text
    for fence in re.finditer(r"^( *)```([\w-]*)[^\n]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        # Blank lines keep the line numbers of what follows.
        rest = rest.replace(fence[0], "\n" * fence[0].count("\n"), 1)
        if fence[2] not in SHELL_LANGUAGES:
            continue
        first = text.count("\n", 0, fence.start()) + 2
        lines = [(first + number, line) for number, line in logical_lines(fence[3])]
        # A block without a language may be output or a formula.
        if not lines or not (fence[2] or is_command(lines[0][1].strip())):
            continue
        # An indented line continues the synopsis above it.
        yield [Command(page, number, line.strip()) for number, line in lines if fence[2] or not line[0].isspace()]
    for span in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", rest):
        command = span[1].strip()
        has_arguments = " " in command or "/" in program_of(command)
        if is_command(command) and has_arguments and program_of(command) not in SHELL_WORDS and not command.endswith("/"):
            yield [Command(page, rest.count("\n", 0, span.start()) + 1, command, inline=True)]


def read_classes():
    """The lines of doc_commands.txt: pattern, what to do, argument."""
    classes = []
    with open(CLASSES, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip() and not line.startswith("#"):
                parts = [part.strip() for part in line.split(" :: ", 2)]
                if len(parts) < 2 or parts[1] not in ("skip", "as", "background", "screen", "programs", "help", "timeout"):
                    sys.exit(f"{CLASSES}:{number}: not PATTERN :: skip|as|background|screen|programs|help|timeout :: ARGUMENT")
                classes.append((*parts, "")[:3])
    return classes


def is_synopsis(text):
    """Whether the text names arguments instead of giving them."""
    return bool(re.search(r"<[A-Za-z-]|\[[A-Za-z-]", text)) and program_of(text) in OWN


def plain_words(text):
    """The program and subcommands in front of the first argument."""
    words = []
    for word in shlex.split(re.sub(r"[<\[].*", "", text)):
        if not re.fullmatch(r"[a-z][a-z_-]*", word):
            break
        words.append(word)
    return words


def action_for(command, classes):
    """What to do with a command: (action, argument)."""
    text = re.sub(r"\s+", " ", command.text)
    for pattern, action, argument in classes:
        if text == pattern and not (command.inline and action in ("background", "screen")):
            return action, argument
    program = program_of(text)
    if program in ("xsched", "xcli", "xserver"):
        if is_synopsis(text) or (command.inline and len(plain_words(text)) == len(text.split()) == 2):
            return "help", ""
        if command.inline and re.fullmatch(r"[a-z ]+ --[a-z-]+", text):
            return "option", text.split()[-1]
    for pattern, action, argument in classes:
        if fnmatch.fnmatchcase(text, re.sub(r"\[", "[[]", pattern)):
            return action, argument
    placeholder = re.search(PLACEHOLDER, text)
    if placeholder:
        return "unclassified", f"`{placeholder[1]}` is a placeholder; give the command to run with the action `as`"
    if program in OWN | SHELL_WORDS or program.startswith(("scripts/", "packaging/", "./", "$LIB/")):
        return "run", ""
    return "unclassified", f"`{program}` is not a program that this check runs"


class Sandbox:
    """A copy of the repository, and a home, a service and programs for the commands."""

    def __init__(self, build, keep):
        self.directory = tempfile.mkdtemp(prefix="xsched-docs-")
        self.keep, self.service, self.children = keep, None, []
        self.copy = os.path.join(self.directory, "xsched")
        names = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                               capture_output=True).stdout.split(b"\0")
        for name in filter(None, map(os.fsdecode, names)):
            source = os.path.join(ROOT, name)
            if os.path.lexists(source):
                os.makedirs(os.path.dirname(os.path.join(self.copy, name)), exist_ok=True)
                shutil.copy2(source, os.path.join(self.copy, name), follow_symlinks=False)
        # `git clone` is one of the commands.
        identity = ["-c", "user.name=check", "-c", "user.email=check@localhost"]
        for words in (["init", "--quiet"], ["add", "--all"], [*identity, "commit", "--quiet", "--message", "Copy the working tree"]):
            subprocess.run(["git", *words], cwd=self.copy, check=True, capture_output=True)
        is_release = os.path.basename(build) == "release"
        os.makedirs(os.path.join(self.copy, "target"))
        target = os.path.dirname(build)
        for profile in ("debug", "release"):
            to = os.path.join(target, profile) if is_release else build
            os.symlink(to, os.path.join(self.copy, "target", profile))
        for name in ("home", "run", "config", "bin", "root"):
            os.makedirs(os.path.join(self.directory, name))
        os.chmod(os.path.join(self.directory, "run"), 0o700)
        self.programs(build, is_release)
        for name in os.listdir(os.path.join(ROOT, "scripts/doc_programs")):
            shutil.copy(os.path.join(ROOT, "scripts/doc_programs", name), self.copy)
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("XSCHED_", "XLOG_", "XSIM_", "LD_PRELOAD", "MAKE", "CARGO_TARGET_DIR"))}
        path = os.pathsep.join([os.path.join(self.directory, "bin"), os.path.join(self.directory, "venv/bin"), build])
        self.environment = dict(
            kept, HOME=os.path.join(self.directory, "home"), XDG_RUNTIME_DIR=os.path.join(self.directory, "run"),
            XDG_CONFIG_HOME=os.path.join(self.directory, "config"), XSCHED_SOCKET=os.path.join(self.directory, "run/xsched/socket"), DESTDIR=os.path.join(self.directory, "root"),
            PATH=path + os.pathsep + os.environ["PATH"], XSIM_LIBRARY=os.path.join(build, "libxsim.so"),
            XSIM_DEVICE=os.path.join(self.directory, "device"), PYTHONPATH=os.path.join(self.copy, "examples/fake_torch"),
            CARGO_TARGET_DIR=os.path.join(self.copy, "target"),
            PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PYTHONDONTWRITEBYTECODE="1", TERM="xterm-256color",
            DOC_PROGRAM_SECONDS="0.5", COMPRESSION="gzip")
        # The toolchain's directories are in the user's home unless they are set.
        for name, default in (("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")):
            self.environment.setdefault(name, os.path.join(os.path.expanduser("~"), default))

    def programs(self, build, is_release):
        """The programs in front of the system's: sudo without root, cargo on the working tree, curl that waits for servers."""
        cargo = shutil.which("cargo")
        manifest = shlex.quote(os.path.join(ROOT, "Cargo.toml"))
        # Without CI=true, the debug build of the tests takes the place of the release build.
        profile = ":" if is_release else '[ "$word" != --release ] || continue; [ "$word" != release ] || word=dev'
        self.script("cargo", f"""
            words=("$1") && shift
            case ${{words[0]}} in build | run | test | bench | check | doc) words+=(--manifest-path {manifest}) ;; esac
            while [ $# -gt 0 ] && [ "$1" != -- ]; do
                word=$1 && shift
                {profile}
                words+=("$word")
            done
            CARGO_TARGET_DIR={shlex.quote(os.path.dirname(build))} exec {shlex.quote(cargo)} "${{words[@]}}" "$@" """)
        self.script("sudo", 'exec "$@"')
        for name in ("xserver", "xcli"):
            os.symlink(os.path.join(build, "xsched"), os.path.join(self.directory, "bin", name))
        if shutil.which("curl"):
            self.script("curl", f"exec {shutil.which('curl')} --silent --show-error --fail --retry 20 --retry-connrefused --retry-delay 1 \"$@\"")
        python = os.path.join(self.directory, "venv")
        if subprocess.run([sys.executable, "-m", "venv", python], capture_output=True).returncode != 0:
            sys.exit("check_commands: python3 cannot make a virtual environment (Debian: python3-venv)")

    def directory_for(self, block):
        """Where a block runs: in the directory of its page if it names a Python program there, else in the root."""
        beside = os.path.join(self.copy, os.path.dirname(block[0].page))
        for name in re.findall(r"\bpython3? (\w+\.py)", "\n".join(command.text for command in block)):
            if not os.path.exists(os.path.join(self.copy, name)) and os.path.exists(os.path.join(beside, name)):
                return beside
        return self.copy

    def script(self, name, text):
        path = os.path.join(self.directory, "bin", name)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/usr/bin/env bash\n" + text + "\n")
        os.chmod(path, 0o755)

    def start_service(self):
        if self.service is None:
            log = os.path.join(self.directory, "service.log")
            with open(log, "w", encoding="utf-8") as errors:
                self.service = self.spawn(["xsched", "serve", "--quiet", "--http", f"127.0.0.1:{XCLI_PORT}"], errors=errors)
            end = time.monotonic() + SERVICE_START_TIMEOUT_S
            # Two commands, because the service listens at its socket and at its port at different times.
            while any(subprocess.run(query, env=self.environment, capture_output=True).returncode != 0
                      for query in (["xsched", "policy"], ["xcli", "policy", "-q"])):
                if time.monotonic() > end:
                    with open(log, encoding="utf-8") as errors:
                        sys.exit(f"check_commands: the service does not start: {errors.read().strip()}")
                time.sleep(0.05)

    def stop_service(self):
        """Stops the service, including one that `xsched run` has started."""
        if self.service is not None:
            end_group(self.service)
            self.service = None

    def start_programs(self):
        """Starts the programs `train` and `serve`, for commands that change a running program. Returns the PID of `train`."""
        self.start_service()
        environment = dict(self.environment, DOC_PROGRAM_SECONDS="600")
        for name in ("train", "serve"):
            self.children.append(self.spawn(["xsched", "run", "--name", name, "--", "python", f"{name}.py"], environment))
        end = time.monotonic() + SERVICE_START_TIMEOUT_S
        while True:
            listed = subprocess.run(["xsched", "ps"], env=self.environment, capture_output=True, text=True).stdout
            if "train" in listed and "serve" in listed:
                return self.children[-2].pid
            if time.monotonic() > end:
                sys.exit(f"check_commands: the programs are not scheduled:\n{listed}")
            time.sleep(0.05)

    def stop_programs(self):
        while self.children:
            end_group(self.children.pop())

    def spawn(self, words, environment=None, errors=subprocess.DEVNULL):
        return subprocess.Popen(words, env=environment or self.environment, cwd=self.copy, start_new_session=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)

    def close(self):
        self.stop_programs()
        self.stop_service()
        # `xsched run` may have started a service, which exits when it has no clients.
        if self.keep:
            print(f"kept {self.directory}")
        else:
            shutil.rmtree(self.directory, ignore_errors=True)


def end_group(process):
    """Ends a process and its children by its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
    process.wait()


def as_script(actions):
    """The shell script of a block, which writes the number of each command to the file DOC_STEP before it runs it."""
    lines = ["set -e -o pipefail", "background=()",
             "finish() { for pid in ${background[@]+\"${background[@]}\"}; do kill \"$pid\" 2>/dev/null || true; done; }",
             "trap finish EXIT"]
    for number, (command, action, argument) in enumerate(actions):
        text = re.sub(r"^(?:sudo\s+)", "sudo ", command.text)
        lines.append(f'echo {number} >"$DOC_STEP"')
        if action == "background" and re.match(SERVICE, text):
            # A page that starts the service twice shows two ways to start it.
            lines += ["finish", 'for pid in ${background[@]+"${background[@]}"}; do wait "$pid" 2>/dev/null || true; done', "background=()"]
        if action == "background":
            lines += [f"{text} & background+=($!)", "sleep 0.7", f'kill -0 $! 2>/dev/null || {{ wait $!; echo "it exited at once"; exit 1; }}']
        elif action == "screen":
            lines.append(f"{shlex.quote(sys.executable)} {shlex.quote(os.path.abspath(__file__))} --screen {shlex.quote(text)}")
        elif action == "help":
            lines.append(" ".join([*plain_words(text), "--help"]) + " >/dev/null")
        elif action == "option":
            lines.append(" ".join([*plain_words(text), "--help"]) + f" | grep --quiet -e {argument}")
        elif action == "as":
            lines.append(argument)
        else:
            lines.append(text)
    return "\n".join(lines) + "\n"


def run_block(sandbox, block, classes):
    """Runs the commands of a block in one shell. Returns the failures."""
    actions = [(command, *action_for(command, classes)) for command in block]
    unclassified = [f"{command}\n    not run: {argument}" for command, action, argument in actions if action == "unclassified"]
    actions = [entry for entry in actions if entry[1] not in ("skip", "unclassified")]
    if not actions:
        return unclassified
    timeout = COMMAND_TIMEOUT_S * len(actions) + sum(int(argument) for _, action, argument in actions if action == "timeout")
    if any(action == "background" and re.match(SERVICE, command.text) for command, action, _ in actions):
        sandbox.stop_service()
    else:
        sandbox.start_service()
    needs_programs = any(action == "programs" or (action == "as" and re.search(r"\bPID\b", argument)) for _, action, argument in actions)
    pid = sandbox.start_programs() if needs_programs else 0
    script = as_script(actions)
    step = os.path.join(sandbox.directory, "step")
    with tempfile.TemporaryFile() as log:
        started = time.monotonic()
        shell = subprocess.Popen(["bash", "-c", re.sub(r"(?<![\w$])PID\b", str(pid), script) if pid else script],
                                 cwd=sandbox.directory_for(block), env=dict(sandbox.environment, DOC_STEP=step), start_new_session=True,
                                 stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            status = shell.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            status = f"no exit within {timeout} s"
        end_group(shell)
        sandbox.stop_programs()
        with open(step, encoding="utf-8") as file:
            last = actions[int(file.read())][0]
        log.seek(0)
        output = log.read().decode(errors="replace").strip()
    took = time.monotonic() - started
    if took > 10:
        print(f"  {took:.0f} s: {last}", flush=True)
    if status == 0:
        return unclassified
    shown = "\n".join("    " + line for line in output.splitlines()[-12:])
    return [*unclassified, f"{last}\n    status {status}; output:\n{shown}"]


def run_on_screen(command):
    """Runs a command on a terminal for SCREEN_S, then ends it with `q` or an interrupt."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "-c", "exec " + command])
    output, keys = b"", [b"q", b"\x03"]
    deadline = time.monotonic() + SCREEN_S
    while True:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                output += os.read(terminal, 65536)
            except OSError:
                break
        if time.monotonic() > deadline:
            if not keys:
                os.kill(pid, signal.SIGKILL)
                sys.exit("it does not end with `q` or an interrupt")
            os.write(terminal, keys.pop(0))
            deadline = time.monotonic() + SCREEN_S
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, 130, -signal.SIGINT) or not output:
        sys.exit(f"status {status}, {len(output)} bytes on the screen: {output[-500:]!r}")


def all_blocks(pages):
    names = pages or sorted({os.path.relpath(path, ROOT) for pattern in PAGES
                             for path in glob.glob(os.path.join(ROOT, pattern), recursive=True)})
    for name in names:
        with open(os.path.join(ROOT, name), encoding="utf-8") as file:
            yield from blocks_of(name, file.read())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("pages", nargs="*")
    parser.add_argument("--build", help="the directory of the built programs (target/debug; with CI=true target/release)")
    parser.add_argument("--list", action="store_true", help="show the commands and what is done with each")
    parser.add_argument("--only", help="run only blocks with this text")
    parser.add_argument("--keep", action="store_true", help="keep the copy of the repository")
    parser.add_argument("--screen", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.screen:
        return run_on_screen(given.screen)
    classes = read_classes()
    blocks = [block for block in all_blocks(given.pages) if any(given.only in command.text for command in block)] \
        if given.only else list(all_blocks(given.pages))
    if given.list:
        for command in (command for block in blocks for command in block):
            action, argument = action_for(command, classes)
            print(f"{action:12} {command}{' (' + argument + ')' if argument else ''}")
        return None
    default = "release" if os.environ.get("CI") else "debug"
    build = os.path.realpath(given.build or os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")), default))
    sandbox, failures, seen = Sandbox(build, given.keep), [], set()
    try:
        if default == "release" or not os.path.exists(os.path.join(build, "xsched")):
            words = ["cargo", "build", "--quiet", "-p", "xsched", "-p", "xsched-lib", "-p", "xsim", "--profile", default.replace("debug", "dev")]
            subprocess.run(words, cwd=ROOT, check=True)
        for block in blocks:
            # The same command on several pages runs once.
            key = "\n".join(command.text for command in block)
            if key not in seen:
                seen.add(key)
                failures += run_block(sandbox, block, classes)
    finally:
        sandbox.close()
    for failure in failures:
        print(failure)
    counts = [action_for(command, classes)[0] for block in blocks for command in block]
    if failures:
        sys.exit(f"{len(failures)} commands in the documentation do not work. Correct the page; or, for a command that cannot run "
                 "here, add a line with the reason to scripts/doc_commands.txt.")
    print(f"{len(counts)} commands in the documentation: {len(counts) - counts.count('skip')} run, {counts.count('skip')} not run "
          "for the reasons in scripts/doc_commands.txt")
    return None


if __name__ == "__main__":
    sys.exit(main())
