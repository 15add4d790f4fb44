"""Foreground beside background on one GPU: alone, as the GPU schedules them, and under XSched. Prints a table."""
import json, os, signal, subprocess, sys, time

here = os.path.dirname(os.path.abspath(__file__))
xsched = sys.argv[1]
python = sys.executable
env = dict(os.environ, XSCHED_SOCKET="/tmp/xsched-bench/socket", XLOG_LEVEL="WARN")


def run(priority, options, script, *arguments):
    prefix = [xsched, "run", "--priority", priority, *options, "--"] if options is not None else []
    return prefix + [python, os.path.join(here, script), *arguments]


def rate(lines):
    values = [float(line) for line in lines if line.strip()]
    return sum(values) / len(values) if values else 0.0


def scene(name, options, background=True):
    job, path = None, f"/tmp/background-{os.getpid()}.log"
    if background:
        with open(path, "w") as log:
            job = subprocess.Popen(run("low", options, "background.py"), stdout=log, stderr=subprocess.STDOUT, env=env)
        while len(open(path).read().splitlines()) < 4:
            time.sleep(0.1)
            if job.poll() is not None:
                print(name, "the background ended early", open(path).read()[-800:]); return
        skip = len(open(path).read())
    done = subprocess.run(run("high", options, "foreground.py", "--requests", "400"), capture_output=True, text=True, env=env, timeout=150)
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


def background_alone(name, options):
    path = f"/tmp/background-{os.getpid()}.log"
    with open(path, "w") as log:
        job = subprocess.Popen(run("low", options, "background.py"), stdout=log, stderr=subprocess.STDOUT, env=env)
    while len(open(path).read().splitlines()) < 8 and job.poll() is None:
        time.sleep(0.1)
    job.terminate(); job.wait(10)
    print(f"{name:14} background alone it/s: {' '.join(open(path).read().split()[2:])}", flush=True)


background_alone("native", None)
background_alone("xsched", [])
scene("alone", None, background=False)
scene("alone+xsched", [], background=False)
scene("native", None)
scene("auto", [])
for budget in sys.argv[2:]:
    scene("auto " + budget, ["--budget", budget])
scene("level 1", ["--level", "1"])
status = subprocess.run([xsched, "ps", "--json"], capture_output=True, text=True, env=env)
print(status.stdout[:300])
