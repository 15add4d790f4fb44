#!/usr/bin/env python3
"""Checks the Helm chart without Helm, and writes manifests/xsched.yaml, the chart with its default values.

    integrations/kubernetes/check_chart.py            compares manifests/xsched.yaml with the chart
    integrations/kubernetes/check_chart.py --write    writes it

The templates use a small part of Helm's language, which this program renders: values, `quote`, `toYaml`, `nindent` and `if`. If `helm`
is installed, its output has to be equal. Every object is checked for what Kubernetes rejects: missing names, volumes that are
mounted but not defined, options that the agent does not have.
"""

import os
import re
import shutil
import subprocess
import sys

import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
MANIFEST = os.path.join(HERE, "manifests/xsched.yaml")
NAMESPACE = "xsched"
EXPRESSION = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*(-?)\}\}")


def read(path):
    with open(os.path.join(HERE, path), encoding="utf-8") as file:
        return file.read()


def look_up(path, values):
    found = {"Values": values, "Release": {"Namespace": NAMESPACE, "Name": "xsched"}}
    for key in path.lstrip(".").split("."):
        found = found[key]
    return found


def evaluate(expression, values):
    """One expression of a template, without its braces."""
    first, *functions = (part.strip() for part in expression.split("|"))
    if first.startswith("toYaml "):
        result = yaml.safe_dump(look_up(first.split()[1], values), default_flow_style=False).rstrip("\n")
    else:
        result = look_up(first, values)
    for function in functions:
        name, *arguments = function.split()
        if name == "nindent":
            margin = " " * int(arguments[0])
            lines = str(result).rstrip("\n").split("\n")
            result = "\n" + "\n".join(margin + line if line else line for line in lines)
        elif name == "quote":
            result = '"%s"' % str(result).replace('"', '\\"')
        else:
            sys.exit(f"check_chart: the templates use {name!r}, which this program does not know")
    return str(result)


def render(template, values):
    output, is_included = [], [True]
    position = 0
    for match in EXPRESSION.finditer(template):
        space, trims, expression = match.group(1), match.group(2), match.group(3)
        if is_included[-1]:
            output.append(template[position:match.start()])
        position = match.end()
        if expression.startswith("if "):
            is_included.append(is_included[-1] and bool(look_up(expression[3:], values)))
        elif expression == "end":
            is_included.pop()
        elif is_included[-1]:
            output.append(("" if trims else space) + evaluate(expression, values))
    output.append(template[position:])
    return "".join(output)


def chart(values):
    directory = os.path.join(HERE, "chart/templates")
    rendered = (render(read(f"chart/templates/{name}"), values).strip("\n") for name in sorted(os.listdir(directory)))
    return "\n---\n".join(text for text in rendered if text.strip()) + "\n"


def merged(values, changes):
    for key, value in changes.items():
        values[key] = merged(values[key], value) if isinstance(value, dict) and isinstance(values.get(key), dict) else value
    return values


def with_values(**changes):
    return list(yaml.safe_load_all(chart(merged(yaml.safe_load(read("chart/values.yaml")), changes))))


def check_objects(objects):
    for item in objects:
        name = f"{item.get('kind')} {item.get('metadata', {}).get('name')}"
        assert item.get("apiVersion") and item.get("kind") and item["metadata"].get("name"), f"{name}: incomplete"
        if item["kind"] != "DaemonSet":
            continue
        spec = item["spec"]["template"]["spec"]
        assert item["spec"]["selector"]["matchLabels"].items() <= item["spec"]["template"]["metadata"]["labels"].items()
        volumes = {volume["name"] for volume in spec["volumes"]}
        for container in spec["initContainers"] + spec["containers"]:
            mounted = {mount["name"] for mount in container["volumeMounts"]}
            assert mounted <= volumes, f"{name}: {container['name']} mounts {mounted - volumes}"
        agent = next(container for container in spec["containers"] if container["name"] == "agent")
        known = set(re.findall(r"^    (\w+): ", read("src/options.rs"), re.MULTILINE))
        for option in agent["args"]:
            field = option.lstrip("-").split("=")[0].replace("-", "_")
            assert field in known, f"{name}: xsched-kubernetes has no option {option}"


def by_kind(objects, kind):
    return [item for item in objects if item["kind"] == kind]


def check_values():
    """Values have an effect where they should."""
    objects = with_values(
        image="registry.example/x:1", slots=7, agentOptions=["--hami-names"], nodeSelector={"gpu": "yes"},
        priorityClasses={"create": False}, settings="[limits]\nmax_share = 50\n", kubeletDirectory="/k")
    check_objects(objects)
    assert not by_kind(objects, "PriorityClass")
    (daemons,) = by_kind(objects, "DaemonSet")
    spec = daemons["spec"]["template"]["spec"]
    assert {c["image"] for c in spec["initContainers"] + spec["containers"]} == {"registry.example/x:1"}
    agent = next(container for container in spec["containers"] if container["name"] == "agent")
    assert {"--slots=7", "--hami-names", "--device-plugins=/k/device-plugins"} <= set(agent["args"]), agent["args"]
    assert spec["nodeSelector"] == {"gpu": "yes"}
    (settings,) = by_kind(objects, "ConfigMap")
    assert settings["data"]["settings.toml"] == "[limits]\nmax_share = 50\n", settings


def main():
    text = "# Written by check_chart.py from the chart with its default values: change the chart, not this file.\n"
    text += "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n---\n" % NAMESPACE
    text += chart(yaml.safe_load(read("chart/values.yaml")))
    objects = list(yaml.safe_load_all(text))
    check_objects(objects)
    check_values()
    check_objects(list(yaml.safe_load_all(read("examples/two-pods.yaml"))))
    if "--write" in sys.argv:
        with open(MANIFEST, "w", encoding="utf-8") as file:
            file.write(text)
    elif read(MANIFEST) != text:
        sys.exit("check_chart: manifests/xsched.yaml differs from the chart: run check_chart.py --write")
    helm = shutil.which("helm")
    if helm:
        command = [helm, "template", "xsched", os.path.join(HERE, "chart"), "--namespace", NAMESPACE]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        key = lambda item: (item["kind"], item["metadata"]["name"])
        rendered = sorted(filter(None, yaml.safe_load_all(output)), key=key)
        assert rendered == sorted(objects[1:], key=key), "helm renders other objects than this program"
    print(f"the chart has {len(objects)} objects" + ("" if helm else "; helm is not installed, so its own rendering was not compared"))


if __name__ == "__main__":
    main()
