"""Jupyter kernels whose notebooks are scheduled.

    python -m xsched.jupyter install --priority low        adds the kernel "Python 3 (XSched, low)" to Jupyter
    python -m xsched.jupyter uninstall --priority low      removes it

In a notebook with such a kernel, `%xsched` shows how its work is scheduled, and `%xsched high`, `%xsched -20` or
`%xsched --share 30` change that. In any other notebook, `%load_ext xsched.jupyter` adds the command `%xsched`.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import sys

from . import _errors

PROGRAM = pathlib.Path(__file__).resolve().parent / "bin" / "xsched"


def data_directory(prefix=None):
    """Where Jupyter looks for the files of a user, or of the installation below a prefix."""
    if prefix:
        return pathlib.Path(prefix) / "share" / "jupyter"
    if os.environ.get("JUPYTER_DATA_DIR"):
        return pathlib.Path(os.environ["JUPYTER_DATA_DIR"])
    base = os.environ.get("XDG_DATA_HOME") or pathlib.Path.home() / ".local" / "share"
    return pathlib.Path(base) / "jupyter"


def kernel_name(args):
    """The name of the kernel's directory. Jupyter allows letters, digits, '.', '_' and '-'."""
    return re.sub(r"[^a-z0-9._-]+", "-", args.name or f"xsched-{args.priority}".lower())


def specification(args):
    """The content of kernel.json."""
    options = ["--priority", args.priority, *(["--share", args.share] if args.share else [])]
    launcher = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--InteractiveShellApp.extra_extensions=xsched.jupyter"]
    return {
        "argv": [str(PROGRAM), "run", *options, "--", *launcher],
        "display_name": args.display_name or f"Python {sys.version_info.major} (XSched, {args.priority})",
        "language": "python",
        "metadata": {"debugger": True},
    }


def install(args):
    if not PROGRAM.is_file():
        sys.exit(f"xsched.jupyter: {PROGRAM} is missing: install the package with `pip install ./python`")
    directory = data_directory(args.prefix) / "kernels" / kernel_name(args)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "kernel.json").write_text(json.dumps(specification(args), indent=1) + "\n")
    except OSError as error:
        sys.exit(f"xsched.jupyter: cannot write {error.filename}: {error.strerror}")
    print(f"{directory}: written. Select the kernel \"{specification(args)['display_name']}\" in Jupyter.")
    try:
        import ipykernel  # noqa: F401
    except ImportError:
        print(f"xsched.jupyter: the kernel needs ipykernel, which {sys.executable} does not have: `pip install ipykernel`", file=sys.stderr)


def uninstall(args):
    directory = data_directory(args.prefix) / "kernels" / kernel_name(args)
    if not (directory / "kernel.json").is_file():
        sys.exit(f"xsched.jupyter: there is no kernel {directory}")
    shutil.rmtree(directory)
    print(f"{directory}: removed")


def priority(text):
    """A priority as `xsched run` takes it."""
    if text.lower() in ("low", "normal", "high"):
        return text.lower()
    try:
        if -256 <= int(text) <= 255:
            return str(int(text))
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"`{text}` is no priority: use -256 to 255, low, normal or high")


def main(words=None):
    parser = argparse.ArgumentParser(prog="python -m xsched.jupyter", description="Adds a kernel to Jupyter whose notebooks are scheduled, or removes it.")
    parser.add_argument("action", choices=["install", "uninstall"])
    parser.add_argument("--priority", default="low", type=priority, help="priority of the notebooks' work: -256 to 255, low, normal or high (default: low)")
    parser.add_argument("--share", help="share of the device in percent, for the policies that use one")
    parser.add_argument("--name", help="name of the kernel's directory (default: xsched-PRIORITY)")
    parser.add_argument("--display-name", help="name that Jupyter shows")
    parser.add_argument("--prefix", help="install below PREFIX/share/jupyter, such as the prefix of a virtual environment, instead of for this user")
    args = parser.parse_args(words)
    {"install": install, "uninstall": uninstall}[args.action](args)


def describe():
    """How the work of this process is scheduled, in one line for each device."""
    from . import _service
    tasks = [task for task in _service.tasks() if task.pid == os.getpid()]
    if not tasks:
        return "this notebook has not used an accelerator yet, or is not scheduled: select a kernel of `python -m xsched.jupyter install`"
    return "\n".join(f"priority {task.priority}, share {task.share} %, {task.state}" for task in tasks)


def change(line):
    """Carries out `%xsched LINE`, and returns what to print."""
    from . import hint
    parser = argparse.ArgumentParser(prog="%xsched", add_help=False, exit_on_error=False)
    parser.add_argument("priority", nargs="?", type=priority)
    parser.add_argument("--share", type=int)
    # A negative number is a priority, not an option.
    words = line.split()
    try:
        args, unknown = parser.parse_known_args(words)
    except (argparse.ArgumentError, argparse.ArgumentTypeError) as error:
        return f"%xsched: {error}"
    if unknown:
        return f"%xsched: `{' '.join(unknown)}` is not known: use %xsched PRIORITY, or %xsched --share PERCENT"
    try:
        if args.priority is not None:
            hint(priority=args.priority if not re.fullmatch(r"-?\d+", args.priority) else int(args.priority))
        if args.share is not None:
            hint(share=args.share)
        return describe()
    except _errors.Error as error:
        return f"%xsched: {error}"


def load_ipython_extension(shell):
    """Adds the command %xsched to a notebook."""
    shell.register_magic_function(lambda line: print(change(line)), "line", "xsched")


if __name__ == "__main__":
    main()
