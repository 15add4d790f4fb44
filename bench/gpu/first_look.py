"""Foreground beside background on one GPU: alone, as the GPU schedules them, and under XSched. Prints a table."""
import json, os, signal, subprocess, sys, time

here = os.path.dirname(os.path.abspath(__file__))
xsched = sys.argv[1]
levels = sys.argv[2].split(",") if len(sys.argv) > 2 else ["auto", "1"]
python = sys.executable
env = dict(os.environ, XSCHED_SOCKET="/tmp/xsched-bench/socket", XLOG_LEVEL="WARN")


def run(priority, level, script, *arguments):
    prefix = [xsched, "run", "--priority", priority, "--level", level, "--"] if level else []
    return prefix + [python, os.path.join(here, script), *arguments]


def rate(lines):
    values = [float(line) for line in lines if line.strip()]
    return sum(values) / len(values) if values else 0.0


def scene(name, level, background=True):
    job, path = None, f"/tmp/background-{os.getpid()}.log"
    if background:
        with open(path, "w") as log:
            job = subprocess.Popen(run("low", level, "background.py"), stdout=log, stderr=subprocess.STDOUT, env=env)
        while len(open(path).read().splitlines()) < 4:
            time.sleep(0.1)
            if job.poll() is not None:
                print(name, "the background ended early", open(path).read()[-800:]); return
        skip = len(open(path).read())
    done = subprocess.run(run("high", level, "foreground.py", "--requests", "400"), capture_output=True, text=True, env=env, timeout=150)
    try:
        result = json.loads(done.stdout.strip().splitlines()[-1])
    except Exception:
        print(name, "FAILED", done.stdout[-500:], done.stderr[-1500:]); result = {}
    rates = ""
    if job:
        text = open(path).read()[skip:]
        lines = [line for line in text.splitlines() if line.replace(".", "").strip().isdigit()]
        rates = " ".join(lines[-8:])
        other = [line for line in text.splitlines() if not line.replace(".", "").strip().isdigit()]
        if other: print("   background says:", other[:5])
        job.terminate(); job.wait(10)
    if done.stderr.strip(): print("   foreground says:", done.stderr.strip().splitlines()[:5])
    print(f"{name:14} {json.dumps(result)}  background it/s: {rates}", flush=True)


scene("alone", None, background=False)
scene("alone+xsched", "auto", background=False)
scene("native", None)
for level in levels:
    scene("xsched " + level, level)
status = subprocess.run([xsched, "ps", "--json"], capture_output=True, text=True, env=env)
print(status.stdout[:300])
